//! The orchestrator: finished traces come in, what a trainer learns from goes out.

mod sample;

pub use sample::{Prepared, Routing, SampleError, StackedTensor, TrainingSample, prepare, samples};
