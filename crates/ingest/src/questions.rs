//! The question to a replay socket that is under way.
//!
//! Threads that feed a recorder carry its questions out after they let go of it, so an earlier question may come to
//! be asked after a later one. The recorder waits for the answer to the latest alone: an earlier one that took its
//! place would leave the stream waiting for ever.

/// The latest question, with what ends it early.
#[derive(Debug)]
pub(crate) struct Questions<H> {
    /// Numbers of questions rise.
    latest: u64,
    handle: Option<H>,
}

impl<H> Default for Questions<H> {
    fn default() -> Self {
        Self { latest: 0, handle: None }
    }
}

impl<H> Questions<H> {
    /// Asks a question in place of the one under way, which `cancel` ends. Nothing is done if a later one was asked.
    pub(crate) fn ask<E>(
        &mut self,
        id: u64,
        cancel: impl FnOnce(H),
        ask: impl FnOnce() -> Result<H, E>,
    ) -> Result<(), E> {
        if id < self.latest {
            return Ok(());
        }
        self.latest = id;
        if let Some(void) = self.handle.take() {
            cancel(void);
        }
        self.handle = Some(ask()?);
        Ok(())
    }

    /// The question under way, to be ended.
    pub(crate) fn take(&mut self) -> Option<H> {
        self.handle.take()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn a_question_that_was_overtaken_is_not_asked_and_ends_no_other() {
        let log = RefCell::new(Vec::new());
        let mut questions = Questions::default();
        let mut ask = |id: u64| {
            let note = |what: &str, id: u64| log.borrow_mut().push(format!("{what} {id}"));
            let asked = questions.ask(
                id,
                |void| note("cancel", void),
                || {
                    note("ask", id);
                    Ok::<_, ()>(id)
                },
            );
            asked.unwrap();
        };
        for id in [1, 6, 5, 2, 7] {
            ask(id);
        }
        assert_eq!(log.into_inner(), ["ask 1", "cancel 1", "ask 6", "cancel 6", "ask 7"]);
        assert_eq!(questions.take(), Some(7));
    }
}
