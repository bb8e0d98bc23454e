//! Where there are no boxes.

use std::{convert::Infallible, ffi::OsString, io, os::fd::OwnedFd, path::PathBuf};

use nix::sys::signal::Signal;

use super::{super::Program, Sandbox, SandboxError, Unenforced};

/// How a box is started.
#[derive(Debug)]
pub(in crate::runtime) struct Start {
    pub(in crate::runtime) program: Program,
    pub(in crate::runtime) control: OwnedFd,
    pub(in crate::runtime) inherited: Vec<OwnedFd>,
    pub(in crate::runtime) doors: Vec<OwnedFd>,
    pub(in crate::runtime) errors: Option<OwnedFd>,
    pub(in crate::runtime) enclosed: Enclosed,
}

/// A box.
#[derive(Debug)]
pub(in crate::runtime) enum Enclosed {}

impl Start {
    pub(in crate::runtime) fn of(_: &Sandbox, _: &Program) -> Result<Self, SandboxError> {
        Err(SandboxError::NoLinux)
    }
}

impl Enclosed {
    pub(in crate::runtime) fn unenforced(&self) -> &[Unenforced] {
        match *self {}
    }

    pub(in crate::runtime) async fn opened(&mut self) -> Result<Option<OwnedFd>, SandboxError> {
        match *self {}
    }

    pub(in crate::runtime) fn signal(&self, _: Signal) -> bool {
        match *self {}
    }

    pub(in crate::runtime) async fn ended(self) -> bool {
        match self {}
    }
}

pub(in crate::runtime) fn prefixes() -> Vec<PathBuf> {
    Vec::new()
}

/// The hidden command `rollhouse box`.
///
/// # Errors
/// Always.
pub fn enter(_: &[OsString]) -> io::Result<Infallible> {
    Err(io::Error::other(SandboxError::NoLinux))
}
