//! Planes on a bus that loses, repeats, delays, reorders and forgets, against the engines' truth.

#![allow(clippy::unwrap_used, unreachable_pub, reason = "tests")]

mod frames;
mod histories;
mod world;
