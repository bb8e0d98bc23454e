//! The MessagePack form: floats take 8 bytes, routing is `[data, shape, dtype]` and a tensor `[dtype, shape, data]`.

use serde::{Serialize, Serializer};

use super::{Routing, StackedTensor};
use crate::trace::ExpertWidth;

pub(super) fn doubles<S: Serializer>(values: &[f32], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(values.iter().map(|value| f64::from(*value)))
}

pub(super) fn some_doubles<S: Serializer>(values: &Option<Vec<f32>>, serializer: S) -> Result<S::Ok, S::Error> {
    struct Doubles<'a>(&'a [f32]);
    impl Serialize for Doubles<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            doubles(self.0, serializer)
        }
    }
    values.as_deref().map(Doubles).serialize(serializer)
}

impl Serialize for Routing {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Pieces of different widths go out in the wider one, as numpy joins them.
        let wide = self.parts.iter().any(|rows| rows.width == ExpertWidth::Two);
        let mut data = Vec::with_capacity(self.parts.iter().map(|rows| rows.data.len()).sum());
        for rows in &self.parts {
            match wide && rows.width == ExpertWidth::One {
                true => data.extend(rows.data.iter().flat_map(|number| [*number, 0])),
                false => data.extend_from_slice(&rows.data),
            }
        }
        let (layers, top_k) = self.parts.first().map_or((0, 0), |rows| (rows.layers, rows.top_k));
        let rows: usize = self.parts.iter().map(|rows| rows.rows()).sum();
        let dtype = if wide { "uint16" } else { "uint8" };
        (serde_bytes::Bytes::new(&data), [rows, layers, top_k], dtype).serialize(serializer)
    }
}

impl Serialize for StackedTensor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let data = self.parts.concat();
        (&self.dtype, &self.shape, serde_bytes::Bytes::new(&data)).serialize(serializer)
    }
}
