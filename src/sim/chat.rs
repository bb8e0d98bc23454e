use super::{
    refusal::Refusal,
    route::{Call, Model, Reply},
};
use bytes::Bytes;
pub(super) async fn answer(_model: &Model, _body: &Bytes, _call: Call<'_>) -> Result<Reply, Refusal> {
    Err(Refusal::busy())
}
