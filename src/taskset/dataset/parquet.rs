//! Parquet files, row by row; only the pages of one row group that are being read are in memory. Behind the feature
//! `parquet`.

use std::path::Path;

use super::{Rows, TasksetError};

/// Opens a Parquet file.
///
/// # Errors
/// When it cannot be opened, is not Parquet, or the program was built without the feature `parquet`.
#[cfg(not(feature = "parquet"))]
pub fn open(path: &Path) -> Result<Rows, TasksetError> {
    Err(TasksetError::Source(format!(
        "cannot read {}: this build has no Parquet; build with `--features parquet` or convert the file to JSONL",
        path.display()
    )))
}

#[cfg(feature = "parquet")]
pub use with_feature::open;

#[cfg(feature = "parquet")]
mod with_feature {
    use std::fs::File;

    use parquet::{
        data_type::Decimal,
        file::{reader::FileReader, serialized_reader::SerializedFileReader},
        record::{Field, Row as ParquetRow, reader::RowIter},
    };
    use serde_json::{Map, Number, Value};

    use super::{Path, Rows, TasksetError};
    use crate::taskset::dataset::{Row, cannot_open};

    /// Opens a Parquet file.
    ///
    /// # Errors
    /// When it cannot be opened or is not Parquet.
    pub fn open(path: &Path) -> Result<Rows, TasksetError> {
        let file = File::open(path).map_err(|error| cannot_open(path, &error))?;
        let reader = SerializedFileReader::new(file)
            .map_err(|error| TasksetError::Source(format!("cannot read {}: {error}", path.display())))?;
        let expected = u64::try_from(reader.metadata().file_metadata().num_rows()).unwrap_or(0);
        let rows = RowIter::from_file_into(Box::new(reader));
        Ok(Box::new(ParquetRows { name: path.display().to_string(), rows, number: 0, expected, failed: false }))
    }

    struct ParquetRows {
        name: String,
        rows: RowIter<'static>,
        number: u64,
        /// Rows by the footer.
        expected: u64,
        failed: bool,
    }

    impl Iterator for ParquetRows {
        type Item = Result<Row, TasksetError>;

        fn next(&mut self) -> Option<Self::Item> {
            if self.failed {
                return None;
            }
            self.number += 1;
            let fault = |problem: String| TasksetError::Row { file: self.name.clone(), row: self.number, problem };
            let row = match self.rows.next() {
                Some(Ok(row)) => Ok(Row { number: self.number, values: object(&row) }),
                Some(Err(error)) => Err(fault(format!("cannot be decoded: {error}"))),
                // The reader ends early, without an error, at a row group it cannot read.
                None if self.number <= self.expected => {
                    Err(fault(format!("the file ends here but announces {} rows", self.expected)))
                }
                None => return None,
            };
            self.failed = row.is_err();
            Some(row)
        }
    }

    fn object(row: &ParquetRow) -> Map<String, Value> {
        row.get_column_iter().map(|(name, field)| (name.clone(), value(field))).collect()
    }

    /// A column's value as JSON; times are whole numbers in the file's own unit, bytes that are not UTF-8 are replaced.
    fn value(field: &Field) -> Value {
        match field {
            Field::Null => Value::Null,
            Field::Bool(value) => (*value).into(),
            Field::Byte(value) => (*value).into(),
            Field::Short(value) => (*value).into(),
            Field::Int(value) => (*value).into(),
            Field::Long(value) => (*value).into(),
            Field::UByte(value) => (*value).into(),
            Field::UShort(value) => (*value).into(),
            Field::UInt(value) => (*value).into(),
            Field::ULong(value) => (*value).into(),
            Field::Float16(value) => float(f64::from(*value)),
            Field::Float(value) => float(f64::from(*value)),
            Field::Double(value) => float(*value),
            Field::Decimal(value) => decimal(value),
            Field::Str(value) => value.clone().into(),
            Field::Bytes(value) => String::from_utf8_lossy(value.data()).into(),
            Field::Date(value) => (*value).into(),
            Field::TimeMillis(value) => (*value).into(),
            Field::TimeMicros(value) | Field::TimestampMillis(value) | Field::TimestampMicros(value) => (*value).into(),
            Field::Group(row) => Value::Object(object(row)),
            Field::ListInternal(list) => list.elements().iter().map(value).collect(),
            Field::MapInternal(map) => map
                .entries()
                .iter()
                .map(|(key, entry)| {
                    let key = match key {
                        Field::Str(key) => key.clone(),
                        other => value(other).to_string(),
                    };
                    (key, value(entry))
                })
                .collect::<Map<String, Value>>()
                .into(),
        }
    }

    fn float(value: f64) -> Value {
        Number::from_f64(value).map_or(Value::Null, Value::Number)
    }

    /// Decimals stay text: JSON numbers would lose digits.
    fn decimal(value: &Decimal) -> Value {
        Field::Decimal(value.clone()).to_string().into()
    }
}
