//! What goes between us and the last step inside the box: packets on a pair of sockets, some with descriptors.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// The most descriptors in one packet, as the kernel has it.
pub(super) const MOST_DESCRIPTORS: usize = 253;

/// The longest packet.
const LONGEST: usize = 64 << 10;

/// One packet; empty and without descriptors when the other side is gone.
#[derive(Debug)]
pub(super) struct Packet {
    pub(super) text: Vec<u8>,
    pub(super) descriptors: Vec<OwnedFd>,
}

/// Two ends that keep packets apart.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

pub(super) fn send(to: impl AsFd, text: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    if text.len() > LONGEST || descriptors.len() > MOST_DESCRIPTORS {
        return Err(io::ErrorKind::ArgumentListTooLong.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !rights.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::ArgumentListTooLong.into());
    }
    sendmsg(to, &[IoSlice::new(text)], &mut rights, SendFlags::NOSIGNAL)?;
    Ok(())
}

pub(super) fn receive(from: impl AsFd) -> io::Result<Packet> {
    let mut text = vec![0; LONGEST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(from, &mut [IoSliceMut::new(&mut text)], &mut rights, RecvFlags::CMSG_CLOEXEC)?;
    text.truncate(received.bytes);
    let descriptors = rights
        .drain()
        .flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
            _ => Vec::new(),
        })
        .collect();
    Ok(Packet { text, descriptors })
}
