//! The parser of the override grammar, by recursive descent over the lexer's tokens.

use std::sync::Arc;

use super::lexer::{self, Kind, Token};
use super::primitive::{as_key, unquote};
use super::sweep::Sweep;
use super::{Content, Element, MAX_DEPTH, Operation, Override, functions};
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::origin::{Origin, Span};

/// Parses every argument; all that are wrong are reported together.
pub(crate) fn parse_all(arguments: &[String]) -> Result<Vec<Override>, Diagnostics> {
    let mut problems = Diagnostics::new();
    let mut overrides = Vec::new();
    for argument in arguments {
        match parse(argument) {
            Ok(parsed) => overrides.push(parsed),
            Err(problem) => problems.push(problem),
        }
    }
    problems.into_result(overrides)
}

pub(crate) fn parse(argument: &str) -> Result<Override, Diagnostic> {
    let text: Arc<str> = Arc::from(argument);
    let describe = |problem: Problem| {
        Diagnostic::new(format!("cannot parse the override `{argument}`"))
            .at(&Origin::argument(&text, problem.span))
            .label(problem.message)
    };
    let tokens =
        lexer::tokens(argument).map_err(|at| describe(unexpected_character(argument, at)))?;
    let mut parser = Parser {
        text: argument,
        tokens: &tokens,
        next: 0,
        depth: 0,
    };
    let mut parsed = parser.overriding(&text).map_err(describe)?;
    parsed.text = text.clone();
    Ok(parsed)
}

fn unexpected_character(text: &str, at: usize) -> Problem {
    let rest = &text[at..];
    let width = rest.chars().next().map_or(1, char::len_utf8);
    let message = match rest.chars().next() {
        Some('\'' | '"') => "this quote is not closed".to_string(),
        Some(c) if !c.is_ascii() => format!("`{c}` must be inside quotes"),
        Some('~') if text[..at].trim_end().ends_with('=') => "for null, write null".to_string(),
        Some(c) if text[..at].contains('=') => format!("`{c}` must be inside quotes"),
        Some(c) => format!("`{c}` is not allowed in a key"),
        None => "unexpected end".to_string(),
    };
    Problem {
        message,
        span: Span::new(at, at + width),
    }
}

/// What is wrong, and where in the argument.
pub(crate) struct Problem {
    pub message: String,
    pub span: Span,
}

pub(super) type Parsed<T> = Result<T, Problem>;

pub(super) struct Parser<'a> {
    pub(super) text: &'a str,
    pub(super) tokens: &'a [Token],
    pub(super) next: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn overriding(&mut self, text: &Arc<str>) -> Parsed<Override> {
        let operation = match self.kind() {
            Some(Kind::Tilde) => Operation::Delete,
            Some(Kind::Plus) if self.kind_at(1) == Some(Kind::Plus) => Operation::ForceAdd,
            Some(Kind::Plus) => Operation::Add,
            _ => Operation::Change,
        };
        self.next += operation.prefix().len();
        let start = self.offset();
        let key = self.key_or_group()?;
        let package = if self.take(Kind::At) {
            Some(self.package())
        } else {
            None
        };
        let key_span = Span::new(
            start,
            self.tokens[..self.next].last().map_or(0, |t| t.span.end),
        );
        let value = match self.kind() {
            None if operation == Operation::Delete => None,
            Some(Kind::Equal) => {
                self.next += 1;
                Some(self.value()?)
            }
            None => return Err(self.problem("expected `=` and a value")),
            Some(_) => return Err(self.problem("expected `=`")),
        };
        if self.next < self.tokens.len() {
            return Err(self.surplus());
        }
        Ok(Override {
            operation,
            key,
            key_span,
            package,
            value,
            text: text.clone(),
        })
    }

    fn surplus(&self) -> Problem {
        match self.kind() {
            Some(Kind::Equal) => {
                self.problem("`=` inside a value must be quoted, or escaped as `\\=`")
            }
            _ => self.problem("unexpected; quote the value if it is text"),
        }
    }

    /// `db`, `hydra.launcher`, `model/remat`, or nothing.
    fn key_or_group(&mut self) -> Parsed<String> {
        let start = self.offset();
        if self.kind() == Some(Kind::Id) && self.kind_at(1) == Some(Kind::Slash) {
            self.next += 1;
            while self.take(Kind::Slash) {
                if !self.take(Kind::Id) {
                    return Err(self.problem("expected the name of a group"));
                }
            }
            let end = self.tokens[self.next - 1].span.end;
            return Ok(self.text[start..end].to_string());
        }
        Ok(self.package())
    }

    fn package(&mut self) -> String {
        match self.kind() {
            Some(Kind::Id | Kind::SpecialKey | Kind::DotPath) => {
                self.next += 1;
                self.text[self.tokens[self.next - 1].span.clone()].to_string()
            }
            _ => String::new(),
        }
    }

    fn value(&mut self) -> Parsed<Element> {
        let start = self.offset();
        if self.kind().is_none() {
            return Ok(Element {
                content: Content::Text(String::new()),
                span: Span::new(start, start),
            });
        }
        let first = self.element()?;
        if self.kind() != Some(Kind::Comma) {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.take(Kind::Comma) {
            items.push(self.element()?);
        }
        let span = Span::new(start, self.text.len());
        if items
            .iter()
            .any(|item| matches!(item.content, Content::Sweep(_)))
        {
            return Err(Problem {
                message: "a sweep inside a sweep".to_string(),
                span,
            });
        }
        Ok(Element {
            content: Content::Sweep(Sweep::simple(items)),
            span,
        })
    }

    fn element(&mut self) -> Parsed<Element> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.problem(&format!("nested deeper than {MAX_DEPTH} levels")));
        }
        let element = match (self.kind(), self.kind_at(1)) {
            (Some(Kind::BracketOpen), _) => self.list(),
            (Some(Kind::BraceOpen), _) => self.dict(),
            (Some(Kind::Id), Some(Kind::ParenOpen)) => self.function(),
            (Some(Kind::Quoted), _) => {
                let token = &self.tokens[self.next];
                self.next += 1;
                Ok(Element {
                    content: Content::Quoted(unquote(&self.text[token.span.clone()])),
                    span: Span::new(token.span.start, token.span.end),
                })
            }
            _ => self.primitive(true),
        }?;
        self.depth -= 1;
        Ok(element)
    }

    fn list(&mut self) -> Parsed<Element> {
        let start = self.offset();
        self.next += 1;
        let mut items = Vec::new();
        if !self.take(Kind::BracketClose) {
            loop {
                let item = self.element()?;
                self.refuse_sweep(&item)?;
                items.push(item);
                if self.take(Kind::BracketClose) {
                    break;
                }
                if !self.take(Kind::Comma) {
                    return Err(self.unclosed(start, '['));
                }
            }
        }
        Ok(self.finish(start, Content::List(items)))
    }

    fn dict(&mut self) -> Parsed<Element> {
        let start = self.offset();
        self.next += 1;
        let mut pairs = Vec::new();
        if !self.take(Kind::BraceClose) {
            loop {
                let key = self.primitive(false)?;
                if !self.take(Kind::Colon) {
                    return Err(self.unclosed_or(start, '{', "expected `:` after the key"));
                }
                let item = self.element()?;
                self.refuse_sweep(&item)?;
                pairs.push((as_key(&key)?, key.span, item));
                if self.take(Kind::BraceClose) {
                    break;
                }
                if !self.take(Kind::Comma) {
                    return Err(self.unclosed(start, '{'));
                }
            }
        }
        Ok(self.finish(start, Content::Dict(pairs)))
    }

    fn function(&mut self) -> Parsed<Element> {
        let start = self.offset();
        let name = self.text[self.tokens[self.next].span.clone()].to_string();
        self.next += 2;
        let mut call = functions::Call::new(&name);
        if !self.take(Kind::ParenClose) {
            loop {
                let named = self.kind() == Some(Kind::Id) && self.kind_at(1) == Some(Kind::Equal);
                if named {
                    let argument = self.text[self.tokens[self.next].span.clone()].to_string();
                    self.next += 2;
                    let value = self.element()?;
                    call.named.push((argument, value));
                } else {
                    let value = self.element()?;
                    if !call.named.is_empty() {
                        return Err(Problem {
                            message: "an argument without a name after one with a name".into(),
                            span: value.span,
                        });
                    }
                    call.positional.push(value);
                }
                if self.take(Kind::ParenClose) {
                    break;
                }
                if !self.take(Kind::Comma) {
                    return Err(self.unclosed(start, '('));
                }
            }
        }
        let span = self.finish(start, Content::Null).span;
        functions::evaluate(call, span).map_err(|message| Problem { message, span })
    }

    fn refuse_sweep(&self, item: &Element) -> Parsed<()> {
        match item.content {
            Content::Sweep(_) => Err(Problem {
                message: "a sweep inside a list or dict".to_string(),
                span: item.span,
            }),
            _ => Ok(()),
        }
    }

    fn finish(&self, start: usize, content: Content) -> Element {
        let end = self.tokens[self.next - 1].span.end;
        Element {
            content,
            span: Span::new(start, end),
        }
    }

    fn unclosed(&self, start: usize, open: char) -> Problem {
        self.unclosed_or(start, open, "unexpected here")
    }

    fn unclosed_or(&self, start: usize, open: char, otherwise: &str) -> Problem {
        if self.kind().is_some() {
            return self.problem(otherwise);
        }
        Problem {
            message: format!("this `{open}` is not closed"),
            span: Span::new(start, self.text.len()),
        }
    }

    pub(super) fn kind(&self) -> Option<Kind> {
        self.kind_at(0)
    }

    pub(super) fn kind_at(&self, ahead: usize) -> Option<Kind> {
        self.tokens.get(self.next + ahead).map(|token| token.kind)
    }

    pub(super) fn take(&mut self, kind: Kind) -> bool {
        let found = self.kind() == Some(kind);
        self.next += usize::from(found);
        found
    }

    /// Where the next token begins.
    fn offset(&self) -> usize {
        self.tokens
            .get(self.next)
            .map_or(self.text.len(), |token| token.span.start)
    }

    pub(super) fn problem(&self, message: &str) -> Problem {
        let end = self
            .tokens
            .get(self.next)
            .map_or(self.text.len(), |token| token.span.end);
        Problem {
            message: message.to_string(),
            span: Span::new(self.offset(), end),
        }
    }
}
