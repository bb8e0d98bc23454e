//! The pictures: coloured squares in a row on white, as PNG in a `data:` URL.

use std::io::Cursor;

use base64::{Engine, engine::general_purpose::STANDARD};

/// Colours that are told apart easily, with their names.
pub(super) const COLOURS: [(&str, [u8; 3]); 10] = [
    ("red", [220, 30, 30]),
    ("green", [30, 150, 50]),
    ("blue", [30, 70, 220]),
    ("yellow", [250, 220, 40]),
    ("orange", [250, 140, 20]),
    ("purple", [130, 40, 170]),
    ("pink", [250, 150, 200]),
    ("brown", [120, 70, 30]),
    ("black", [0, 0, 0]),
    ("cyan", [60, 210, 230]),
];

const SQUARE: usize = 32;
const GAP: usize = 8;
const WHITE: u8 = COLOURS.len() as u8;
const PREFIX: &str = "data:image/png;base64,";

/// The picture of these squares. Pixels are stored without compression, so that a task stays the same to the byte
/// whatever version of the compressor is built in.
pub(super) fn draw(squares: &[usize]) -> String {
    let width = GAP + squares.len() * (SQUARE + GAP);
    let height = SQUARE + 2 * GAP;
    let mut line = vec![WHITE; width];
    for (place, colour) in squares.iter().enumerate() {
        let left = GAP + place * (SQUARE + GAP);
        line[left..left + SQUARE].fill(*colour as u8);
    }
    let blank = vec![WHITE; width];
    let pixels: Vec<u8> = (0..height)
        .flat_map(|row| if (GAP..GAP + SQUARE).contains(&row) { line.iter() } else { blank.iter() })
        .copied()
        .collect();
    let mut file = Vec::new();
    write(&mut file, width, height, &pixels).expect("an image of right size is written to memory");
    format!("{PREFIX}{}", STANDARD.encode(file))
}

fn write(file: &mut Vec<u8>, width: usize, height: usize, pixels: &[u8]) -> Result<(), png::EncodingError> {
    let mut palette: Vec<u8> = COLOURS.iter().flat_map(|(_, rgb)| *rgb).collect();
    palette.extend([255; 3]);
    let mut encoder = png::Encoder::new(file, width as u32, height as u32);
    encoder.set_color(png::ColorType::Indexed);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_palette(palette);
    encoder.set_compression(png::Compression::NoCompression);
    encoder.set_filter(png::Filter::NoFilter);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()
}

/// The colours of the squares of a picture, from left to right; `None` if it is not one of these pictures.
pub(super) fn colours_of(url: &str) -> Option<Vec<usize>> {
    let file = STANDARD.decode(url.strip_prefix(PREFIX)?).ok()?;
    let mut decoder = png::Decoder::new(Cursor::new(file));
    decoder.set_transformations(png::Transformations::EXPAND);
    let mut reader = decoder.read_info().ok()?;
    let mut pixels = vec![0; reader.output_buffer_size()?];
    let frame = reader.next_frame(&mut pixels).ok()?;
    if frame.color_type != png::ColorType::Rgb {
        return None;
    }
    let (width, height) = (frame.width as usize, frame.height as usize);
    let middle = pixels.get((height / 2) * width * 3..)?;
    let squares = (width.checked_sub(GAP)?) / (SQUARE + GAP);
    (0..squares)
        .map(|place| {
            let at = (GAP + place * (SQUARE + GAP) + SQUARE / 2) * 3;
            let pixel = middle.get(at..at + 3)?;
            COLOURS.iter().position(|(_, rgb)| rgb == pixel)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_can_be_read() {
        let squares: Vec<usize> = (0..COLOURS.len()).chain([3, 3, 0]).collect();
        assert_eq!(colours_of(&draw(&squares)), Some(squares));
        assert_eq!(colours_of("data:image/png;base64,AAAA"), None);
        assert_eq!(colours_of("https://example.org/a.png"), None);
    }
}
