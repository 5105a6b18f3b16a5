//! Parameters of filters and units of work: texts by name.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// A value in a description.
#[derive(Deserialize)]
#[serde(untagged)]
enum Value {
    Text(String),
    Integer(i64),
    Float(f64),
    Flag(bool),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Integer(number) => write!(f, "{number}"),
            Self::Float(number) => write!(f, "{number}"),
            Self::Flag(flag) => write!(f, "{flag}"),
        }
    }
}

impl From<Value> for String {
    fn from(value: Value) -> Self {
        value.to_string()
    }
}

/// A text that a description may also write as a number or as `true`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Value")]
struct Text(String);

impl From<Value> for Text {
    fn from(value: Value) -> Self {
        Self(value.into())
    }
}

/// Parameters by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Parameters(BTreeMap<String, Text>);

impl Parameters {
    /// All parameters, by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, text)| (&name[..], &text.0[..]))
    }

    /// Returns these parameters with those of `more`, which take precedence.
    pub(crate) fn with(&self, more: &Self) -> Self {
        let mut all = self.clone();
        all.0.extend(more.0.clone());
        all
    }

    /// Returns a parameter as a number or a text; `None` if there is none of that name.
    pub(crate) fn get<T: FromStr>(&self, name: &str) -> Result<Option<T>, Failure>
    where
        T::Err: fmt::Display,
    {
        let Some(text) = self.0.get(name) else { return Ok(None) };
        let wrong = |error| Failure::filter(format!("{name} = {:?}: {error}", text.0));
        text.0.parse().map(Some).map_err(wrong)
    }

    /// Returns a parameter that the filter cannot do without.
    pub(crate) fn need<T: FromStr>(&self, name: &str) -> Result<T, Failure>
    where
        T::Err: fmt::Display,
    {
        self.get(name)?.ok_or_else(|| Failure::filter(format!("needs the parameter {name}")))
    }
}
