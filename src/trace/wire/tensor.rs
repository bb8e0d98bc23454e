//! Tensors on the wire: maps with a dtype, a shape and raw bytes, as verifiers writes numpy arrays.

use bytes::Bytes;
use serde::{Deserialize, Serialize, Serializer, ser::SerializeMap};

use crate::trace::tokens::{ExpertWidth, RouterRows, SamplingMask};

/// An array as it comes; its bytes lie in the frame.
#[derive(Debug, Deserialize)]
pub(super) struct Array<'a> {
    #[serde(borrow)]
    dtype: &'a str,
    shape: Vec<u64>,
    #[serde(borrow, with = "serde_bytes")]
    data: &'a [u8],
}

/// A sampling mask as it comes.
#[derive(Debug, Deserialize)]
pub(super) struct MaskArrays<'a> {
    #[serde(borrow)]
    ids: Array<'a>,
    #[serde(borrow)]
    counts: Array<'a>,
}

/// The frame that tensors lie in.
pub(super) struct Frame<'a>(pub(super) &'a Bytes);

impl Frame<'_> {
    /// A tensor that is most of the frame stays in it. Any other is copied: it would keep alive what is not its own.
    fn keep(&self, data: &[u8]) -> Bytes {
        if data.len() >= self.0.len() / 2 { self.0.slice_ref(data) } else { Bytes::copy_from_slice(data) }
    }
}

impl Array<'_> {
    /// Bytes of each number and whether it may be negative, if the data is as long as the shape says.
    fn numbers(&self) -> Result<(usize, bool), String> {
        let (size, signed) = match self.dtype {
            "uint8" => (1, false),
            "uint16" => (2, false),
            "uint32" => (4, false),
            "uint64" => (8, false),
            "int8" => (1, true),
            "int16" => (2, true),
            "int32" => (4, true),
            "int64" => (8, true),
            other => return Err(format!("a tensor has the element type {other}")),
        };
        let count = self.shape.iter().try_fold(size as u64, |bytes, side| bytes.checked_mul(*side));
        if count != Some(self.data.len() as u64) {
            return Err(format!("a tensor of shape {:?} has {} bytes", self.shape, self.data.len()));
        }
        Ok((size, signed))
    }

    /// The data in numbers of another size, if all fit.
    fn resized(&self, size: usize, signed: bool, to: usize) -> Result<Bytes, String> {
        let mut data = Vec::with_capacity(self.data.len() / size * to);
        for number in self.data.chunks_exact(size) {
            let (kept, rest) = number.split_at(to.min(size));
            let is_negative = signed && number.last().is_some_and(|byte| *byte >= 0x80);
            if is_negative || rest.iter().any(|byte| *byte != 0) {
                return Err(format!("a tensor of {} holds a number that does not fit into {to} bytes", self.dtype));
            }
            data.extend_from_slice(kept);
            data.resize(data.len() + to - kept.len(), 0);
        }
        Ok(data.into())
    }

    /// The array as router rows.
    pub(super) fn rows(&self, frame: &Frame<'_>) -> Result<RouterRows, String> {
        let (size, signed) = self.numbers()?;
        let &[_, layers, top_k] = &self.shape[..] else {
            return Err(format!("router rows have the shape {:?}", self.shape));
        };
        let (Ok(layers), Ok(top_k)) = (usize::try_from(layers), usize::try_from(top_k)) else {
            return Err(format!("router rows have the shape {:?}", self.shape));
        };
        // Of no rows at all, too: their size is computed from these.
        if layers.checked_mul(top_k).and_then(|row| row.checked_mul(2)).is_none() {
            return Err(format!("router rows have the shape {:?}", self.shape));
        }
        let (width, data) = match (size, signed) {
            (1, false) => (ExpertWidth::One, frame.keep(self.data)),
            (2, false) => (ExpertWidth::Two, frame.keep(self.data)),
            _ => (ExpertWidth::Two, self.resized(size, signed, 2)?),
        };
        Ok(RouterRows { data, width, layers, top_k })
    }

    /// The array as numbers of four bytes, one after another.
    fn words(&self, frame: &Frame<'_>) -> Result<Bytes, String> {
        match self.numbers()? {
            (4, _) => Ok(frame.keep(self.data)),
            (size, signed) => self.resized(size, signed, 4),
        }
    }
}

impl MaskArrays<'_> {
    /// The mask of a node that sampled so many tokens.
    pub(super) fn mask(&self, sampled: usize, frame: &Frame<'_>) -> Result<SamplingMask, String> {
        let mask = SamplingMask { ids: self.ids.words(frame)?, counts: self.counts.words(frame)? };
        let ids: u64 = mask.counts().map(u64::from).sum();
        if mask.counts().len() != sampled || ids != mask.ids().len() as u64 {
            return Err(format!(
                "a sampling mask has {} rows of {ids} ids, {} ids, and {sampled} tokens were sampled",
                mask.counts().len(),
                mask.ids().len(),
            ));
        }
        Ok(mask)
    }
}

/// An array as it is sent.
pub(super) struct Sending<'a> {
    dtype: &'static str,
    shape: &'a [usize],
    data: &'a [u8],
}

impl Serialize for Sending<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(4))?;
        map.serialize_entry("__nd__", &true)?;
        map.serialize_entry("dtype", self.dtype)?;
        map.serialize_entry("shape", self.shape)?;
        map.serialize_entry("data", serde_bytes::Bytes::new(self.data))?;
        map.end()
    }
}

/// Router rows as they are sent.
pub(super) struct Rows<'a> {
    rows: &'a RouterRows,
    first: usize,
}

impl<'a> Rows<'a> {
    /// All of them.
    pub(super) fn all(rows: &'a RouterRows) -> Self {
        Self { rows, first: 0 }
    }

    /// The last one; `None` when there is none.
    pub(super) fn last(rows: &'a RouterRows) -> Option<Self> {
        Some(Self { rows, first: rows.rows().checked_sub(1)? })
    }
}

impl Serialize for Rows<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { rows, first } = *self;
        let dtype = match rows.width {
            ExpertWidth::One => "uint8",
            ExpertWidth::Two => "uint16",
        };
        let data = rows.data.get(first * rows.row_bytes()..).unwrap_or_default();
        Sending { dtype, shape: &[rows.rows() - first, rows.layers, rows.top_k], data }.serialize(serializer)
    }
}

/// A sampling mask as it is sent.
pub(super) struct Mask<'a>(pub(super) &'a SamplingMask);

impl Serialize for Mask<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        for (key, data) in [("ids", &self.0.ids), ("counts", &self.0.counts)] {
            map.serialize_entry(key, &Sending { dtype: "int32", shape: &[data.len() / 4], data })?;
        }
        map.end()
    }
}
