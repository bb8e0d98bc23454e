use super::{
    refusal::Refusal,
    route::{Model, Reply},
};
use bytes::Bytes;
pub(super) fn tokenize(_model: &Model, _body: &Bytes) -> Result<Reply, Refusal> {
    Err(Refusal::busy())
}
pub(super) fn detokenize(_body: &Bytes) -> Result<Reply, Refusal> {
    Err(Refusal::busy())
}
