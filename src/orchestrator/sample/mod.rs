//! Traces as training samples, in the form that prime-rl's trainer takes.
//!
//! Each branch gives at most one sample; a node that was sampled once is trained once, in the first branch that holds
//! it. Router rows and image tensors are shared with the trace and copied only into the message.

mod build;
mod prepare;
mod wire;

use bytes::Bytes;
use indexmap::IndexMap;
use serde::Serialize;

pub use build::samples;
pub use prepare::{Prepared, prepare};

use crate::trace::RouterRows;

/// One sequence to train on. Its MessagePack form (`rmp_serde::to_vec`) is an array of these 13 fields in this order;
/// every array has one entry per token unless it says otherwise.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrainingSample {
    /// The exact ids that the model saw and sampled.
    pub token_ids: Vec<u32>,
    /// Which of them are trained.
    pub mask: Vec<bool>,
    /// The logprob of each sampled token, 0 elsewhere; kept also where a sampled token is not trained here.
    #[serde(serialize_with = "wire::doubles")]
    pub logprobs: Vec<f32>,
    /// Sampling temperatures; empty until the sink fills them.
    pub temperatures: Vec<f64>,
    /// The environment's name.
    pub env_name: String,
    /// Logprobs under a reference model; `None` when no node has any.
    #[serde(serialize_with = "wire::some_doubles")]
    pub ref_logprobs: Option<Vec<f32>>,
    /// Image tensors by name, the branch's images one after another.
    pub mm_kwargs: Option<IndexMap<String, StackedTensor>>,
    /// The experts that each token was routed to.
    pub routed_experts: Option<Routing>,
    /// 1 for an image token, 2 for a video token, 0 elsewhere; `None` for text.
    pub mm_token_type_ids: Option<Vec<u32>>,
    /// Weights of the reinforcement loss; `None` means 1.
    pub rl_weights: Option<Vec<f64>>,
    /// Weights of the cross-entropy loss; `None` means 0.
    pub ce_weights: Option<Vec<f64>>,
    /// Weights of the divergence from the reference; `None` means 0.
    pub ref_kl_weights: Option<Vec<f64>>,
    /// Credit of each sampled token, 0 elsewhere; `None` when no node has any.
    #[serde(serialize_with = "wire::some_doubles")]
    pub advantages: Option<Vec<f32>>,
}

/// Router rows of a sequence, in the pieces that its nodes hold. All have the same layers and choices.
#[derive(Clone, Debug, PartialEq)]
pub struct Routing {
    /// The pieces in order; never empty.
    pub parts: Vec<RouterRows>,
}

/// Tensors of equal rank and inner shape, one after another along their first dimension.
#[derive(Clone, Debug, PartialEq)]
pub struct StackedTensor {
    /// Element type, by numpy's name.
    pub dtype: String,
    /// The shape of the whole.
    pub shape: Vec<usize>,
    /// The pieces' elements, row-major and little-endian.
    pub parts: Vec<Bytes>,
}

/// Why a trace or a sample cannot be trained on.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum SampleError {
    /// Nodes of one branch were routed through different numbers of layers or experts.
    #[error("router rows of one branch differ in shape: all its turns must come from the same model")]
    RouterShape,
    /// Images of one branch have tensors that cannot be put together.
    #[error("the image tensor {name:?} differs in kind among the images of one branch")]
    ImageShape {
        /// The tensor.
        name: String,
    },
    /// An array does not have one entry per token.
    #[error("{what} has {got} entries for {expected} tokens")]
    Length {
        /// The array.
        what: &'static str,
        /// How many tokens there are.
        expected: usize,
        /// How many entries came.
        got: usize,
    },
    /// There are image grids, and no marks of the tokens that stand for them.
    #[error("image_grid_thw needs mm_token_type_ids")]
    UnmarkedImages,
    /// Tokens of the reinforcement loss have no advantages.
    #[error("tokens are trained by reinforcement and have no advantages: score the group first")]
    NoAdvantages,
    /// A name that the trainer keeps for itself.
    #[error("an environment must not be named `all`")]
    ReservedName,
    /// A tensor's bytes and shape contradict each other.
    #[error("the image tensor {name:?} has a shape that its data does not fill")]
    Tensor {
        /// The tensor.
        name: String,
    },
}
