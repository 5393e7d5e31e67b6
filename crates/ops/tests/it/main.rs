//! Operations over both protocols, against scripted and simulated engines.

mod asking;
mod simulated;
mod table;
