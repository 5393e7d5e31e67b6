//! Ports that were ours a moment ago.
//!
//! Sockets are closed on a thread of their own: some moments after a bound socket was dropped its port is
//! still taken. Binding it again then waits, if it was this process that let go of it; any other taken port
//! is an error at once.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use crate::SocketError;

/// It takes milliseconds; this is for a machine that is very busy.
const FREED_WITHIN: Duration = Duration::from_secs(2);
const TRY_AGAIN: Duration = Duration::from_millis(5);

/// Addresses that were let go of, and when.
#[derive(Debug, Default)]
pub struct ReleasedPorts(HashMap<String, Instant>);

impl ReleasedPorts {
    /// A socket that was bound here has been dropped, or is about to be.
    pub fn release(&mut self, address: impl Into<String>) {
        self.0.retain(|_, since| since.elapsed() < FREED_WITHIN);
        self.0.insert(address.into(), kvplane_runtime::now());
    }

    /// Binds; again, while the port is one that was released just now. Blocks so long.
    pub fn bind<T>(
        &self,
        address: &str,
        mut bind: impl FnMut() -> Result<T, SocketError>,
    ) -> Result<T, SocketError> {
        loop {
            match bind() {
                Err(error) if error.is_address_in_use() && self.is_closing(address) => {
                    thread::sleep(TRY_AGAIN);
                }
                result => return result,
            }
        }
    }

    fn is_closing(&self, address: &str) -> bool {
        self.0.get(address).is_some_and(|since| since.elapsed() < FREED_WITHIN)
    }
}
