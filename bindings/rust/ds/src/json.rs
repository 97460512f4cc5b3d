//! A small JSON value, for writing configurations and reading reports without another crate.
//!
//! Every document goes into and comes out of this crate as text, so `serde_json` serves as well.
//!
//! ```
//! use ds::json::{object, Value};
//! let spec = object([("path", Value::from("a \"quoted\" name.txt")), ("sequence_length", 64.into())]);
//! assert_eq!(spec.to_string(), r#"{"path": "a \"quoted\" name.txt", "sequence_length": 64}"#);
//! let report = Value::parse(r#"{"by_tag": {"weights": 1024}}"#).unwrap();
//! assert_eq!(report["by_tag"]["weights"].as_i64(), Some(1024));
//! ```
use std::fmt;
use std::ops::Index;

use crate::error::{Error, Result};

/// A JSON value. Objects keep the order of their members.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `null`, also what an index finds nothing for.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number without fraction or exponent that fits.
    Integer(i64),
    /// Any other number.
    Number(f64),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<Value>),
    /// An object.
    Object(Vec<(String, Value)>),
}

/// An object of the given members.
pub fn object<K: Into<String>>(members: impl IntoIterator<Item = (K, Value)>) -> Value {
    Value::Object(
        members
            .into_iter()
            .map(|(key, value)| (key.into(), value))
            .collect(),
    )
}

/// A text as a JSON string, with its quotes.
pub fn quote(text: &str) -> String {
    Value::from(text).to_string()
}

impl From<bool> for Value {
    fn from(value: bool) -> Value {
        Value::Bool(value)
    }
}
impl From<i32> for Value {
    fn from(value: i32) -> Value {
        Value::Integer(value.into())
    }
}
impl From<i64> for Value {
    fn from(value: i64) -> Value {
        Value::Integer(value)
    }
}
impl From<f64> for Value {
    fn from(value: f64) -> Value {
        Value::Number(value)
    }
}
impl From<&str> for Value {
    fn from(value: &str) -> Value {
        Value::Text(value.into())
    }
}
impl From<String> for Value {
    fn from(value: String) -> Value {
        Value::Text(value)
    }
}
impl<T: Into<Value>> From<Vec<T>> for Value {
    fn from(values: Vec<T>) -> Value {
        Value::List(values.into_iter().map(Into::into).collect())
    }
}

static NULL: Value = Value::Null;

impl Index<&str> for Value {
    type Output = Value;
    /// A member, or `Null` where there is none.
    fn index(&self, key: &str) -> &Value {
        self.get(key).unwrap_or(&NULL)
    }
}
impl Index<usize> for Value {
    type Output = Value;
    /// An element of a list, or `Null` where there is none.
    fn index(&self, at: usize) -> &Value {
        match self {
            Value::List(values) => values.get(at).unwrap_or(&NULL),
            _ => &NULL,
        }
    }
}

impl Value {
    /// Reads a document.
    pub fn parse(text: &str) -> Result<Value> {
        let mut parser = Parser {
            text,
            at: 0,
            depth: 0,
        };
        let value = parser.value()?;
        parser.blanks();
        if parser.at != text.len() {
            return Err(parser.wrong("nothing more"));
        }
        Ok(value)
    }
    /// A member of an object.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.members()
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value)
    }
    /// The members of an object, in order; none of anything else.
    pub fn members(&self) -> &[(String, Value)] {
        match self {
            Value::Object(members) => members,
            _ => &[],
        }
    }
    /// The elements of a list; none of anything else.
    pub fn elements(&self) -> &[Value] {
        match self {
            Value::List(values) => values,
            _ => &[],
        }
    }
    /// A string's text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
    /// A whole number.
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Value::Integer(number) => Some(*number),
            _ => None,
        }
    }
    /// Any number.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Value::Integer(number) => Some(*number as f64),
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }
    /// `true` or `false`.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Value::Bool(value) => Some(*value),
            _ => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("null"),
            Value::Bool(value) => write!(f, "{value}"),
            Value::Integer(number) => write!(f, "{number}"),
            // JSON has no other numbers; `{:?}` reads back as the same one.
            Value::Number(number) if number.is_finite() => write!(f, "{number:?}"),
            Value::Number(_) => f.write_str("null"),
            Value::Text(text) => write_text(f, text),
            Value::List(values) => {
                f.write_str("[")?;
                for (i, value) in values.iter().enumerate() {
                    write!(f, "{}{value}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
            Value::Object(members) => {
                f.write_str("{")?;
                for (i, (key, value)) in members.iter().enumerate() {
                    f.write_str(if i == 0 { "" } else { ", " })?;
                    write_text(f, key)?;
                    write!(f, ": {value}")?;
                }
                f.write_str("}")
            }
        }
    }
}

fn write_text(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_str("\"")?;
    for c in text.chars() {
        match c {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            '\n' => f.write_str("\\n")?,
            '\r' => f.write_str("\\r")?,
            '\t' => f.write_str("\\t")?,
            c if c < ' ' => write!(f, "\\u{:04x}", c as u32)?,
            c => write!(f, "{c}")?,
        }
    }
    f.write_str("\"")
}

/// Lists and objects may be nested this deep.
const MOST_DEPTH: usize = 128;

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn wrong(&self, wanted: &str) -> Error {
        Error::invalid(format!(
            "JSON: {wanted} is expected at byte {} of {}",
            self.at,
            self.text.len()
        ))
    }
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }
    fn blanks(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\r', '\n']).len();
    }
    fn takes(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn value(&mut self) -> Result<Value> {
        self.blanks();
        match self.rest().as_bytes().first() {
            Some(b'{') => self.nested(Parser::object),
            Some(b'[') => self.nested(Parser::list),
            Some(b'"') => Ok(Value::Text(self.string()?)),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ if self.takes("true") => Ok(Value::Bool(true)),
            _ if self.takes("false") => Ok(Value::Bool(false)),
            _ if self.takes("null") => Ok(Value::Null),
            _ => Err(self.wrong("a value")),
        }
    }

    fn nested(&mut self, read: fn(&mut Self) -> Result<Value>) -> Result<Value> {
        if self.depth == MOST_DEPTH {
            return Err(self.wrong("less nesting"));
        }
        self.depth += 1;
        self.at += 1;
        let value = read(self)?;
        self.depth -= 1;
        Ok(value)
    }

    fn list(&mut self) -> Result<Value> {
        let mut values = Vec::new();
        self.blanks();
        if self.takes("]") {
            return Ok(Value::List(values));
        }
        loop {
            values.push(self.value()?);
            self.blanks();
            if self.takes("]") {
                return Ok(Value::List(values));
            }
            if !self.takes(",") {
                return Err(self.wrong("`,` or `]`"));
            }
        }
    }

    fn object(&mut self) -> Result<Value> {
        let mut members = Vec::new();
        self.blanks();
        if self.takes("}") {
            return Ok(Value::Object(members));
        }
        loop {
            self.blanks();
            let key = self.string()?;
            self.blanks();
            if !self.takes(":") {
                return Err(self.wrong("`:`"));
            }
            members.push((key, self.value()?));
            self.blanks();
            if self.takes("}") {
                return Ok(Value::Object(members));
            }
            if !self.takes(",") {
                return Err(self.wrong("`,` or `}`"));
            }
        }
    }

    fn number(&mut self) -> Result<Value> {
        let rest = self.rest();
        let end = rest
            .find(|c: char| !matches!(c, '0'..='9' | '-' | '+' | '.' | 'e' | 'E'))
            .unwrap_or(rest.len());
        let digits = &rest[..end];
        let value = match digits.parse::<i64>() {
            Ok(number) => Value::Integer(number),
            Err(_) => Value::Number(digits.parse().map_err(|_| self.wrong("a number"))?),
        };
        self.at += end;
        Ok(value)
    }

    fn string(&mut self) -> Result<String> {
        if !self.takes("\"") {
            return Err(self.wrong("a string"));
        }
        let mut text = String::new();
        loop {
            let rest = self.rest();
            let plain = rest
                .find(['"', '\\'])
                .ok_or_else(|| self.wrong("the end of a string"))?;
            text.push_str(&rest[..plain]);
            self.at += plain;
            if self.takes("\"") {
                return Ok(text);
            }
            self.at += 1; // the backslash
            text.push(self.escaped()?);
        }
    }

    fn escaped(&mut self) -> Result<char> {
        let code = self
            .rest()
            .chars()
            .next()
            .ok_or_else(|| self.wrong("an escape"))?;
        let plain = match code {
            '"' | '\\' | '/' => code,
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'u' => {
                self.at += 1;
                return self.unicode();
            }
            _ => return Err(self.wrong("an escape")),
        };
        self.at += 1;
        Ok(plain)
    }

    fn unicode(&mut self) -> Result<char> {
        let first = self.hex()?;
        let code = match first {
            0xd800..=0xdbff if self.takes("\\u") => match self.hex()? {
                second @ 0xdc00..=0xdfff => 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00),
                _ => 0xd800, // no character: refused below
            },
            _ => first,
        };
        char::from_u32(code).ok_or_else(|| self.wrong("a whole surrogate pair"))
    }

    fn hex(&mut self) -> Result<u32> {
        let digits = self
            .rest()
            .get(..4)
            .filter(|four| four.bytes().all(|b| b.is_ascii_hexdigit()));
        let code = digits.and_then(|four| u32::from_str_radix(four, 16).ok());
        self.at += 4;
        code.ok_or_else(|| {
            Error::invalid(format!(
                "JSON: four hex digits are expected at byte {}",
                self.at - 4
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_come_back() {
        let text = r#"{"a": [1, -2.5, 1e+20, true, null], "b": {"c": "x\"\\\n\u0001é"}, "d": []}"#;
        let value = Value::parse(text).unwrap();
        assert_eq!(Value::parse(&value.to_string()).unwrap(), value);
        assert_eq!(value["a"][1].as_f64(), Some(-2.5));
        assert_eq!(value["a"][7], Value::Null);
        assert_eq!(value["b"]["c"].as_str(), Some("x\"\\\n\u{1}é"));
        assert_eq!(
            Value::parse(r#""\ud83d\ude00\u00e9""#).unwrap().as_str(),
            Some("😀é")
        );
    }

    #[test]
    fn what_is_no_json_is_refused_where_it_goes_wrong() {
        for text in [
            "",
            "{",
            "[1,]",
            "{\"a\" 1}",
            "\"",
            "\"\\u12\"",
            "\"\\ud800\"",
            "1 2",
            "nul",
            "-",
            "\"\\x\"",
        ] {
            assert!(Value::parse(text).is_err(), "{text}");
        }
        let deep = "[".repeat(1000);
        assert!(Value::parse(&deep)
            .unwrap_err()
            .message()
            .contains("nesting"));
        assert!(Value::parse("[1, x]")
            .unwrap_err()
            .message()
            .contains("byte 4"));
    }
}
