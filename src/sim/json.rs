//! JSON written straight into the bytes that are sent.

/// Appends text that is JSON already.
pub(super) fn raw(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
}

/// Appends a string with quotes and escapes.
pub(super) fn json_string(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("writing a string to memory does not fail");
}

/// Appends a string or `null`.
pub(super) fn json_string_or_null(out: &mut Vec<u8>, text: Option<&str>) {
    match text {
        Some(text) => json_string(out, text),
        None => raw(out, "null"),
    }
}

/// Appends a decimal number.
pub(super) fn number(out: &mut Vec<u8>, value: u64) {
    serde_json::to_writer(out, &value).expect("writing a number to memory does not fail");
}

/// Appends `[1,2,3]`.
pub(super) fn numbers(out: &mut Vec<u8>, values: impl IntoIterator<Item = u32>) {
    out.push(b'[');
    for (index, value) in values.into_iter().enumerate() {
        comma(out, index);
        number(out, u64::from(value));
    }
    out.push(b']');
}

/// Appends a comma between elements.
pub(super) fn comma(out: &mut Vec<u8>, index: usize) {
    if index > 0 {
        out.push(b',');
    }
}
