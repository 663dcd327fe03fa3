//! Primitive values: bare words, numbers and quoted texts.

use super::lexer::{Kind, Token};
use super::parser::{Parsed, Parser, Problem};
use super::{Content, Element};
use crate::origin::Span;
use crate::python;
use crate::value::{Key, KeyKind};

impl Parser<'_> {
    /// A bare value: one token gives it its type, several are joined to a text.
    pub(super) fn primitive(&mut self, is_value: bool) -> Parsed<Element> {
        let first = self.next;
        while let Some(kind) = self.kind() {
            let accepted = match kind {
                Kind::Id
                | Kind::Null
                | Kind::Int
                | Kind::Float
                | Kind::Bool
                | Kind::UnquotedChar
                | Kind::Escape
                | Kind::Space => true,
                Kind::Interpolation | Kind::Colon => is_value,
                _ => false,
            };
            if !accepted {
                break;
            }
            self.next += 1;
        }
        let mut tokens = &self.tokens[first..self.next];
        if tokens.is_empty() {
            return Err(match self.kind() {
                None => self.problem("unexpected end; a value is missing here"),
                Some(Kind::Quoted) if !is_value => self.problem("a dict key cannot be quoted"),
                Some(_) => self.problem("unexpected here; a value is missing"),
            });
        }
        let is_space = |token: Option<&Token>| token.is_some_and(|t| t.kind == Kind::Space);
        if is_space(tokens.first()) {
            tokens = &tokens[1..];
        }
        if is_space(tokens.last()) {
            tokens = &tokens[..tokens.len() - 1];
        }
        let (Some(head), Some(tail)) = (tokens.first(), tokens.last()) else {
            self.next = first;
            return Err(self.problem("a value of white space alone must be quoted"));
        };
        let span = Span::new(head.span.start, tail.span.end);
        let content = match tokens {
            [only] => self.typed(only)?,
            _ => Content::Text(tokens.iter().map(|token| self.unescaped(token)).collect()),
        };
        Ok(Element { content, span })
    }

    fn typed(&self, token: &Token) -> Parsed<Content> {
        let text = &self.text[token.span.clone()];
        let too_large = || Problem {
            message: "this integer exceeds 128 bits".to_string(),
            span: Span::new(token.span.start, token.span.end),
        };
        Ok(match token.kind {
            Kind::Int => Content::Int(python::parse_int(text).ok_or_else(too_large)?),
            Kind::Float => Content::Float(python::parse_float(text).ok_or_else(too_large)?),
            Kind::Bool => Content::Bool(text.eq_ignore_ascii_case("true")),
            Kind::Null => Content::Null,
            _ => Content::Text(self.unescaped(token)),
        })
    }

    fn unescaped(&self, token: &Token) -> String {
        let text = &self.text[token.span.clone()];
        match token.kind {
            Kind::Escape => text.chars().skip(1).step_by(2).collect(),
            _ => text.to_string(),
        }
    }
}

pub(super) fn as_key(element: &Element) -> Parsed<Key> {
    Ok(match &element.content {
        Content::Text(text) | Content::Quoted(text) => Key::from(text.as_str()),
        Content::Int(value) => Key::new(value.to_string(), KeyKind::Integer),
        Content::Float(value) => Key::new(python::float(*value), KeyKind::Float),
        Content::Bool(value) => Key::new(value.to_string(), KeyKind::Boolean),
        _ => {
            return Err(Problem {
                message: "null cannot be a key".to_string(),
                span: element.span,
            });
        }
    })
}

/// Strips the quotes; halves the backslashes in front of a quote, keeps the others.
pub(super) fn unquote(text: &str) -> String {
    let quote = text.chars().next().unwrap_or('\'');
    let mut out = String::new();
    let mut backslashes = 0;
    for c in text[1..].chars() {
        match c {
            '\\' => backslashes += 1,
            c if c == quote => {
                out.extend(std::iter::repeat_n('\\', backslashes / 2));
                if backslashes % 2 == 1 {
                    out.push(quote);
                }
                backslashes = 0;
            }
            c => {
                out.extend(std::iter::repeat_n('\\', backslashes));
                backslashes = 0;
                out.push(c);
            }
        }
    }
    out
}
