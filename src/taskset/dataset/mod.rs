//! Rows of data files, read as they are asked for.
