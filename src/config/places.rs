//! From byte offsets of a text to lines and columns.

use std::sync::Arc;

use super::fault::Origin;

/// Turns byte offsets of a text into places.
pub(super) struct Places<'a> {
    file: Arc<str>,
    text: &'a str,
    line_starts: Vec<usize>,
}

impl<'a> Places<'a> {
    pub(super) fn new(name: &str, text: &'a str) -> Self {
        let line_starts =
            std::iter::once(0).chain(text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1));
        Self { file: Arc::from(name), text, line_starts: line_starts.collect() }
    }

    pub(super) fn at(&self, offset: usize) -> Origin {
        let mut offset = offset.min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        let line = self.line_starts.partition_point(|start| *start <= offset);
        let column = self.text[self.line_starts[line - 1]..offset].chars().count() + 1;
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Origin::File { file: self.file.clone(), line: count(line), column: count(column) }
    }
}
