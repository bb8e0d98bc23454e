//! Writing JSON by hand: answers are written once, straight into the bytes that are sent.

use std::io::Write;

/// Appends a string with quotes and escapes.
pub(super) fn json_string(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("writing a string to memory does not fail");
}

/// Appends a decimal number.
pub(super) fn number(out: &mut Vec<u8>, value: u64) {
    write!(out, "{value}").expect("writing a number to memory does not fail");
}

/// Appends `[1,2,3]`.
pub(super) fn numbers(out: &mut Vec<u8>, values: impl IntoIterator<Item = u32>) {
    out.push(b'[');
    for (index, value) in values.into_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        number(out, u64::from(value));
    }
    out.push(b']');
}
