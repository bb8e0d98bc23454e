//! Compact storage of a node's tokens: ids and logprobs take 4 bytes each, flags take runs or bits.

use bytes::Bytes;
use indexmap::IndexMap;

use super::error::GraphError;

/// One truth value per token, stored as runs or as bits, whichever is smaller.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenFlags {
    len: u32,
    form: FlagForm,
}

/// Equal flags have equal forms, because the choice depends on the flags alone.
#[derive(Clone, Debug, PartialEq)]
enum FlagForm {
    /// Positions where the value changes; it is false before the first.
    Runs(Box<[u32]>),
    /// 32 flags a word, lowest bit first.
    Bits(Box<[u32]>),
}

impl Default for FlagForm {
    fn default() -> Self {
        Self::Runs(Box::default())
    }
}

impl TokenFlags {
    /// The flags of an iterator.
    pub fn new(flags: impl IntoIterator<Item = bool>) -> Self {
        let mut changes = Vec::new();
        let mut len = 0;
        let mut last = false;
        for flag in flags {
            if flag != last {
                changes.push(len);
                last = flag;
            }
            len += 1;
        }
        if changes.len() <= (len as usize).div_ceil(32).max(2) {
            return Self { len, form: FlagForm::Runs(changes.into_boxed_slice()) };
        }
        let mut words = vec![0_u32; (len as usize).div_ceil(32)];
        for run in changes.chunks(2) {
            for position in run[0]..run.get(1).copied().unwrap_or(len) {
                words[position as usize / 32] |= 1 << (position % 32);
            }
        }
        Self { len, form: FlagForm::Bits(words.into_boxed_slice()) }
    }

    /// `off` false flags, then `on` true ones.
    pub fn suffix(off: usize, on: usize) -> Self {
        let changes: Box<[u32]> = if on == 0 { Box::default() } else { Box::new([off as u32]) };
        Self { len: (off + on) as u32, form: FlagForm::Runs(changes) }
    }

    /// How many flags.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many are true.
    pub fn count(&self) -> usize {
        match &self.form {
            FlagForm::Runs(changes) => {
                changes.chunks(2).map(|run| (run.get(1).copied().unwrap_or(self.len) - run[0]) as usize).sum()
            }
            FlagForm::Bits(words) => words.iter().map(|word| word.count_ones() as usize).sum(),
        }
    }

    /// The flags in order.
    pub fn iter(&self) -> impl Iterator<Item = bool> + '_ {
        let mut next = 0;
        let mut value = false;
        (0..self.len).map(move |position| match &self.form {
            FlagForm::Runs(changes) => {
                while changes.get(next).is_some_and(|change| *change == position) {
                    value = !value;
                    next += 1;
                }
                value
            }
            FlagForm::Bits(words) => words[position as usize / 32] >> (position % 32) & 1 == 1,
        })
    }

    /// Bytes on the heap.
    pub fn heap_size(&self) -> usize {
        match &self.form {
            FlagForm::Runs(words) | FlagForm::Bits(words) => words.len() * size_of::<u32>(),
        }
    }
}

/// What a node adds to the token sequence of its branch. Ids and masks are fixed at the commit; credit is set later.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeTokens {
    pub(super) ids: Box<[u32]>,
    pub(super) mask: TokenFlags,
    pub(super) is_content: TokenFlags,
    pub(super) logprobs: Box<[f32]>,
    pub(super) sidecar: Option<Box<Sidecar>>,
}

/// What few nodes have: credit, and what stays in memory or on the wire.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Sidecar {
    /// The renderer's own ids where the engine expanded placeholders; `None` when they are the same. Never written.
    pub(super) renderer_ids: Option<Box<[u32]>>,
    pub(super) streams: [Option<Box<[f32]>>; 4],
    pub(super) loss_weights: Option<IndexMap<String, Box<[f64]>>>,
    pub(super) routed_experts: Option<RouterRows>,
    pub(super) sampling_mask: Option<SamplingMask>,
    pub(super) images: Vec<IndexMap<String, Tensor>>,
}

/// An array of numbers. Wire only, never in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Element type, by numpy's name.
    pub dtype: String,
    /// Its sides.
    pub shape: Vec<usize>,
    /// The elements, row-major and little-endian.
    pub data: Bytes,
}

/// The credit streams that hold one value per sampled token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreditStream {
    /// Credit given by the algorithm.
    Advantages,
    /// Logprobs under a reference model.
    ReferenceLogprobs,
    /// Logprobs recomputed by the trainer.
    TrainerLogprobs,
    /// Entropies of the trainer's policy.
    Entropies,
}

impl CreditStream {
    /// All streams, in the order of their fields in a trace.
    pub const ALL: [Self; 4] = [Self::Advantages, Self::ReferenceLogprobs, Self::TrainerLogprobs, Self::Entropies];

    /// The field's name in a trace.
    pub fn name(self) -> &'static str {
        match self {
            Self::Advantages => "advantages",
            Self::ReferenceLogprobs => "reference_logprobs",
            Self::TrainerLogprobs => "trainer_logprobs",
            Self::Entropies => "entropies",
        }
    }
}

impl NodeTokens {
    /// The token ids that this node adds.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The ids as the renderer wrote them: [`Self::ids`] unless the engine expanded image placeholders.
    pub fn renderer_ids(&self) -> &[u32] {
        self.sidecar.as_ref().and_then(|sidecar| sidecar.renderer_ids.as_deref()).unwrap_or(&self.ids)
    }

    /// One flag per id: whether the model sampled it.
    pub fn mask(&self) -> &TokenFlags {
        &self.mask
    }

    /// One flag per id: whether it is message text rather than template; empty when unknown.
    pub fn is_content(&self) -> &TokenFlags {
        &self.is_content
    }

    /// One logprob per sampled id.
    pub fn logprobs(&self) -> &[f32] {
        &self.logprobs
    }

    /// A credit stream, one value per sampled id; `None` until it is set.
    pub fn credit(&self, stream: CreditStream) -> Option<&[f32]> {
        self.sidecar.as_ref()?.streams[stream as usize].as_deref()
    }

    /// Named loss weights, each with one value per id; `None` until set.
    pub fn loss_weights(&self) -> Option<&IndexMap<String, Box<[f64]>>> {
        self.sidecar.as_ref()?.loss_weights.as_ref()
    }

    /// The experts chosen for each id.
    pub fn routed_experts(&self) -> Option<&RouterRows> {
        self.sidecar.as_ref()?.routed_experts.as_ref()
    }

    /// The tokens that sampling could choose from, for each sampled id.
    pub fn sampling_mask(&self) -> Option<&SamplingMask> {
        self.sidecar.as_ref()?.sampling_mask.as_ref()
    }

    /// The tensors of each image of the message, by name.
    pub fn images(&self) -> &[IndexMap<String, Tensor>] {
        self.sidecar.as_ref().map_or(&[], |sidecar| &sidecar.images)
    }

    /// Sets the tensors of the message's images.
    pub fn set_images(&mut self, images: Vec<IndexMap<String, Tensor>>) {
        self.sidecar().images = images;
    }

    /// Sets or clears the experts. Rows that do not add up to the ids of a branch are no routing of it.
    pub fn set_routed_experts(&mut self, rows: Option<RouterRows>) {
        self.sidecar().routed_experts = rows;
    }

    /// Sets or clears a credit stream.
    ///
    /// # Errors
    /// The values are not one per sampled id.
    pub fn set_credit(&mut self, stream: CreditStream, values: Option<Vec<f32>>) -> Result<(), GraphError> {
        if let Some(values) = &values {
            expect_length(stream.name(), self.mask.count(), values.len())?;
        }
        self.sidecar().streams[stream as usize] = values.map(Vec::into_boxed_slice);
        Ok(())
    }

    /// Sets the loss weights of one name.
    ///
    /// # Errors
    /// The weights are not one per id.
    pub fn set_loss_weights(&mut self, name: &str, weights: Vec<f64>) -> Result<(), GraphError> {
        expect_length("loss_weights", self.ids.len(), weights.len())?;
        self.sidecar().loss_weights.get_or_insert_default().insert(name.to_owned(), weights.into_boxed_slice());
        Ok(())
    }

    pub(super) fn sidecar(&mut self) -> &mut Sidecar {
        self.sidecar.get_or_insert_default()
    }

    /// Bytes on the heap, the wire-only tensors included.
    pub fn heap_size(&self) -> usize {
        let floats = |values: &Option<Box<[f32]>>| values.as_ref().map_or(0, |values| values.len() * size_of::<f32>());
        let sidecar = self.sidecar.as_ref().map_or(0, |sidecar| {
            size_of::<Sidecar>()
                + sidecar.renderer_ids.as_ref().map_or(0, |ids| ids.len() * size_of::<u32>())
                + sidecar.streams.iter().map(floats).sum::<usize>()
                + sidecar.loss_weights.as_ref().map_or(0, |weights| {
                    weights.iter().map(|(name, values)| name.capacity() + values.len() * size_of::<f64>() + 64).sum()
                })
                + sidecar.routed_experts.as_ref().map_or(0, |rows| rows.data.len())
                + sidecar.sampling_mask.as_ref().map_or(0, |mask| mask.ids.len() + mask.counts.len())
                + sidecar
                    .images
                    .iter()
                    .flatten()
                    .map(|(name, tensor)| name.capacity() + tensor.data.len() + 64)
                    .sum::<usize>()
        });
        self.ids.len() * size_of::<u32>()
            + self.logprobs.len() * size_of::<f32>()
            + self.mask.heap_size()
            + self.is_content.heap_size()
            + sidecar
    }
}

pub(super) fn expect_length(what: &'static str, expected: usize, got: usize) -> Result<(), GraphError> {
    if expected == got { Ok(()) } else { Err(GraphError::Length { what, expected, got }) }
}

/// Width of an expert number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertWidth {
    /// One byte.
    One,
    /// Two bytes, little-endian.
    Two,
}

impl ExpertWidth {
    /// Bytes per number.
    pub fn bytes(self) -> usize {
        match self {
            Self::One => 1,
            Self::Two => 2,
        }
    }
}

/// Experts chosen per position: `[positions, layers, top_k]` numbers, row by row. Wire only, never in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterRows {
    /// The numbers.
    pub data: Bytes,
    /// Width of each number.
    pub width: ExpertWidth,
    /// Layers that route.
    pub layers: usize,
    /// Experts chosen per layer.
    pub top_k: usize,
}

impl RouterRows {
    /// Bytes of one position.
    pub(super) fn row_bytes(&self) -> usize {
        self.layers * self.top_k * self.width.bytes()
    }

    /// How many positions.
    pub fn rows(&self) -> usize {
        self.data.len().checked_div(self.row_bytes()).unwrap_or(0)
    }

    /// Rows `begin..end` in memory of their own, with the last one repeated `extra` times: a view would keep the rows
    /// of the whole turn alive.
    pub(super) fn copy(&self, begin: usize, end: usize, extra: usize) -> Self {
        let row = self.row_bytes();
        let mut data = Vec::with_capacity((end - begin + extra) * row);
        data.extend_from_slice(&self.data[begin * row..end * row]);
        for _ in 0..extra {
            data.extend_from_slice(&self.data[(end - 1) * row..end * row]);
        }
        Self { data: data.into(), ..*self }
    }

    /// Rows of the same inner shape one after another, in the widest of their widths; `None` for no rows at all.
    pub(super) fn concat(parts: &[&Self]) -> Option<Self> {
        let widest = parts.iter().find(|rows| rows.width == ExpertWidth::Two).or(parts.first())?;
        let mut data = Vec::with_capacity(parts.iter().map(|rows| rows.rows() * widest.row_bytes()).sum());
        for rows in parts {
            match (rows.width, widest.width) {
                (ExpertWidth::One, ExpertWidth::Two) => data.extend(rows.data.iter().flat_map(|number| [*number, 0])),
                _ => data.extend_from_slice(&rows.data),
            }
        }
        Some(Self { data: data.into(), ..**widest })
    }

    /// Puts another row in place of the last one, in the wider of the two widths; `false`, and nothing changes, when
    /// there is none or the other is not one row of this shape.
    pub(super) fn replace_last(&mut self, row: &Self) -> bool {
        if !self.same_shape(row) || row.rows() != 1 || self.rows() == 0 {
            return false;
        }
        let kept = self.data.len() - self.row_bytes();
        if self.width == row.width {
            // Rows that nobody else holds are not copied.
            match std::mem::take(&mut self.data).try_into_mut() {
                Ok(mut data) => {
                    data[kept..].copy_from_slice(&row.data);
                    self.data = data.freeze();
                    return true;
                }
                Err(data) => self.data = data,
            }
        }
        let before = Self { data: self.data.slice(..kept), ..*self };
        if let Some(rows) = Self::concat(&[&before, row]) {
            *self = rows;
        }
        true
    }

    /// Whether layers and choices agree.
    pub(super) fn same_shape(&self, other: &Self) -> bool {
        (self.layers, self.top_k) == (other.layers, other.top_k)
    }
}

/// Which tokens sampling could choose from. Wire only, never in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SamplingMask {
    /// Token ids of all rows, one after another, 4 bytes each, little-endian.
    pub ids: Bytes,
    /// Length of each row, 4 bytes each, little-endian.
    pub counts: Bytes,
}

impl SamplingMask {
    /// A mask from rows of token ids, one row per sampled token.
    pub fn from_rows<'a>(rows: impl IntoIterator<Item = &'a [u32]>) -> Self {
        let mut ids = Vec::new();
        let mut counts = Vec::new();
        for row in rows {
            counts.extend_from_slice(&(row.len() as u32).to_le_bytes());
            ids.extend(row.iter().flat_map(|id| id.to_le_bytes()));
        }
        Self { ids: ids.into(), counts: counts.into() }
    }

    /// Token ids of all rows.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        words(&self.ids)
    }

    /// Length of each row.
    pub fn counts(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        words(&self.counts)
    }
}

fn words(bytes: &[u8]) -> impl ExactSizeIterator<Item = u32> + '_ {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

/// The exact tokens of one turn, as a renderer and an engine report them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TurnTokens {
    /// The prompt's ids from position `prompt_start` on.
    pub prompt_ids: Vec<u32>,
    /// 0 when `prompt_ids` is the whole prompt. Otherwise the length of the stored prefix, which the caller vouches
    /// for: `message_spans` then has one entry per message of the tail and `is_content` starts there too. This keeps
    /// the cost of a commit independent of the conversation's length.
    pub prompt_start: usize,
    /// What was sampled.
    pub completion_ids: Vec<u32>,
    /// One per completion id.
    pub completion_logprobs: Vec<f32>,
    /// Positions of each prompt message in the prompt, half-open; `None` inside for a message without a known place,
    /// `None` outside when nothing is known.
    pub message_spans: Option<Vec<Option<(usize, usize)>>>,
    /// One per prompt id: message text rather than template. Empty when unknown.
    pub is_content: Vec<bool>,
    /// The renderer says that it extended the stored prefix token by token.
    pub bridged: bool,
    /// The renderer's own ids, when the engine expanded image placeholders; spans and `is_content` then refer to these.
    pub renderer_prompt_ids: Option<Vec<u32>>,
    /// Where the engine put each placeholder's tokens: offset and length in the prompt.
    pub mm_placeholders: Option<Vec<(usize, usize)>>,
    /// Special token id to 1 (image) or 2 (video); empty for text.
    pub mm_token_type_id_map: IndexMap<u32, u32>,
    /// Experts chosen, with the position of the first row.
    pub routed_experts: Option<(RouterRows, usize)>,
    /// Tokens that sampling could choose from, one row per completion id.
    pub sampling_mask: Option<SamplingMask>,
}
