//! Both sides of the protocol, each against libzmq and against raw bytes.

mod live;
mod proofs;
mod publisher;
mod publisher_bytes;
mod publisher_model;
mod replay;
mod router;
mod strangers;
mod support;
mod transports;
