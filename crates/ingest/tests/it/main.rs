//! Answers over streams, and what a late start and a defect leave behind.

mod catalog;
mod defect;
mod late_join;
