//! Parameters of an operation: in the query, in a JSON body, or in both. What nobody knows is refused.

use std::time::Duration;

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use kvplane_core::{ErrorCode, PublicError, in_plain_words};
use serde_json::{Map, Value};

use crate::ops;

/// The query, in the order in which it was written.
pub(super) type Pairs = Result<Query<Vec<(String, String)>>, QueryRejection>;

/// A body that is not the JSON that it should be.
pub(super) fn wrong_body(error: impl std::fmt::Display) -> PublicError {
    PublicError::field("body", in_plain_words(&error.to_string()))
        .with_next("GET /openapi.json has the form of the body")
}

/// What was given, each until it is taken.
#[derive(Debug)]
pub(super) struct Parameters(Vec<(String, Value)>);

impl Parameters {
    /// What is `null` is absent.
    pub(super) fn read(query: Pairs, body: &[u8]) -> Result<Self, PublicError> {
        let Query(query) =
            query.map_err(|rejection| PublicError::new(ErrorCode::InvalidArgument, rejection.body_text()))?;
        let mut given: Vec<_> = query.into_iter().map(|(name, text)| (name, Value::String(text))).collect();
        if !body.trim_ascii().is_empty() {
            let fields: Option<Map<String, Value>> = serde_json::from_slice(body).map_err(wrong_body)?;
            given.extend(fields.into_iter().flatten().filter(|(_, value)| !value.is_null()));
        }
        Ok(Self(given))
    }

    /// Whatever was not taken is not known.
    pub(super) fn finish(self) -> Result<(), PublicError> {
        match self.0.first() {
            Some((name, _)) => {
                let message = format!("there is no parameter {name:?}");
                Err(PublicError::new(ErrorCode::InvalidArgument, message)
                    .with_next("leave it out, or correct its name"))
            }
            None => Ok(()),
        }
    }

    fn taken(&mut self, name: &str, others: &[&str]) -> impl Iterator<Item = (String, Value)> {
        self.0.extract_if(.., move |(given, _)| given == name || others.contains(&given.as_str()))
    }

    /// The value of a parameter, under its name or another. Given twice, nobody knows which one is meant.
    fn one(&mut self, name: &'static str, others: &[&str]) -> Result<Option<Value>, PublicError> {
        let mut taken = self.taken(name, others);
        let value = taken.next().map(|(_, value)| value);
        if taken.next().is_some() {
            return Err(PublicError::field(name, "is given more than once").with_next("give it once"));
        }
        Ok(value)
    }

    /// Names that may be given several times, or as a list.
    pub(super) fn list(&mut self, name: &'static str, others: &[&str]) -> Result<Vec<String>, PublicError> {
        let mut names = Vec::new();
        for (_, value) in self.taken(name, others) {
            let values = if let Value::Array(values) = value { values } else { vec![value] };
            for value in values {
                let Value::String(text) = value else { return Err(PublicError::field(name, "must be text")) };
                names.push(text);
            }
        }
        Ok(names)
    }

    pub(super) fn text(
        &mut self,
        name: &'static str,
        others: &[&str],
    ) -> Result<Option<String>, PublicError> {
        match self.one(name, others)? {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(PublicError::field(name, "must be text")),
        }
    }

    pub(super) fn flag(&mut self, name: &'static str, others: &[&str]) -> Result<Option<bool>, PublicError> {
        let Some(value) = self.one(name, others)? else { return Ok(None) };
        match (&value, value.as_str()) {
            (Value::Bool(set), _) => Ok(Some(*set)),
            (_, Some("true" | "1")) => Ok(Some(true)),
            (_, Some("false" | "0")) => Ok(Some(false)),
            _ => Err(PublicError::field(name, "must be true or false")),
        }
    }

    pub(super) fn number(&mut self, name: &'static str) -> Result<Option<u32>, PublicError> {
        let Some(value) = self.one(name, &[])? else { return Ok(None) };
        let number = match &value {
            Value::String(text) => text.parse().ok(),
            value => value.as_u64().and_then(|number| u32::try_from(number).ok()),
        };
        number
            .map(Some)
            .ok_or_else(|| PublicError::field(name, "must be a whole number that is not negative"))
    }

    pub(super) fn seconds(
        &mut self,
        name: &'static str,
        others: &[&str],
    ) -> Result<Option<Duration>, PublicError> {
        self.float(name, others)?.map(|value| ops::seconds(name, value)).transpose()
    }

    pub(super) fn positive_seconds(
        &mut self,
        name: &'static str,
        others: &[&str],
    ) -> Result<Option<Duration>, PublicError> {
        self.float(name, others)?.map(|value| ops::positive_seconds(name, value)).transpose()
    }

    fn float(&mut self, name: &'static str, others: &[&str]) -> Result<Option<f64>, PublicError> {
        let Some(value) = self.one(name, others)? else { return Ok(None) };
        let number = match &value {
            Value::String(text) => text.parse().ok(),
            value => value.as_f64(),
        };
        number.map(Some).ok_or_else(|| PublicError::field(name, "must be a number of seconds"))
    }
}
