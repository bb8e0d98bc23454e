//! The `null` harness: chat only, in process.

use futures::future::BoxFuture;

use super::{Halt, Harness, Model};
use crate::trace::Message;

/// One model call per segment, without tools.
#[derive(Clone, Copy, Debug, Default)]
pub struct Null;

impl Harness for Null {
    fn segment<'a>(&'a self, say: Vec<Message>, model: &'a mut dyn Model) -> BoxFuture<'a, Result<(), Halt>> {
        Box::pin(async move { model.ask(say).await.map(drop) })
    }
}
