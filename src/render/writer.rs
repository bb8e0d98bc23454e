//! Writes a conversation piece by piece, each token with its place.

use super::{
    rendered::{Extension, Place, Rendered, Run},
    tokenizer::Tokenizer,
};

/// A piece of text that is tokenized together with its neighbours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece<'a> {
    pub(super) text: &'a str,
    pub(super) place: Place,
    /// Text of the template, in which control tokens are recognized; those in text of a message are just text.
    pub(super) template: bool,
}

impl<'a> Piece<'a> {
    /// Text that the family's template writes. Control tokens in it count.
    pub(super) fn template(text: &'a str, place: Place) -> Self {
        Self { text, place, template: true }
    }

    /// Text that a message or a tool brings. It never becomes a control token.
    pub(super) fn message(text: &'a str, place: Place) -> Self {
        Self { text, place, template: false }
    }
}

/// Ids in the making.
pub(super) struct Writer<'a> {
    tokenizer: &'a Tokenizer,
    ids: Vec<u32>,
    runs: Vec<Run>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Self {
        Self { tokenizer, ids: Vec::new(), runs: Vec::new() }
    }

    /// One control token.
    pub(super) fn control(&mut self, id: u32, place: Place) {
        self.ids.push(id);
        add(&mut self.runs, 1, place);
    }

    /// Text of the template, tokenized by itself.
    pub(super) fn template(&mut self, text: &str, place: Place) {
        self.pieces(&[Piece::template(text, place)]);
    }

    /// Text of a message, tokenized by itself.
    pub(super) fn message(&mut self, text: &str, place: Place) {
        self.pieces(&[Piece::message(text, place)]);
    }

    /// Pieces tokenized together: a token may reach over the border of two pieces, and comes from where its first
    /// character stands.
    pub(super) fn pieces(&mut self, pieces: &[Piece<'_>]) {
        self.write(pieces, false);
    }

    /// The same, but that a token with any content in it is content.
    pub(super) fn pieces_with_whole_content(&mut self, pieces: &[Piece<'_>]) {
        self.write(pieces, true);
    }

    fn write(&mut self, pieces: &[Piece<'_>], whole: bool) {
        let Self { tokenizer, ids, runs } = self;
        tokenizer.write(pieces, whole, |id, place| {
            ids.push(id);
            add(runs, 1, place);
        });
    }

    pub(super) fn rendered(self) -> Rendered {
        Rendered { ids: self.ids, runs: Some(self.runs) }
    }

    pub(super) fn extension(self) -> Extension {
        Extension { ids: self.ids, runs: self.runs }
    }
}

fn add(runs: &mut Vec<Run>, length: u32, place: Place) {
    match runs.last_mut() {
        Some(last) if last.place == place => last.length += length,
        _ => runs.push(Run { length, place }),
    }
}
