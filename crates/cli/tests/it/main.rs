//! The program as users run it.

#[cfg(feature = "sim")]
mod access;
#[cfg(feature = "sim")]
mod demo;
mod operations;
