//! The grammar of interpolations, by recursive descent over the characters.

use super::{Expression, MAX_DEPTH, Part, Reference, Step, Template};
use crate::grammar::lexer;
use crate::python;
use crate::value::{Key, KeyKind};

/// What is wrong, and at which byte of the text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SyntaxError {
    pub message: String,
    pub at: usize,
}

type Parsed<T> = Result<T, SyntaxError>;

/// Parses a value that holds `${`.
pub(crate) fn template(text: &str) -> Parsed<Template> {
    let mut parser = Parser::new(text);
    let parts = parser.text(None)?;
    Ok(Template(parts))
}

/// Parses the argument of `oc.decode`: one element.
pub(crate) fn element(text: &str) -> Parsed<Expression> {
    let mut parser = Parser::new(text);
    let element = parser.element()?;
    if parser.at < text.len() {
        return parser.fail("unexpected here");
    }
    Ok(element)
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Self {
        Parser {
            text,
            at: 0,
            depth: 0,
        }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn fail<T>(&self, message: &str) -> Parsed<T> {
        Err(SyntaxError {
            message: message.to_string(),
            at: self.at,
        })
    }

    fn enter(&mut self) -> Parsed<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.fail(&format!("nested deeper than {MAX_DEPTH} levels"));
        }
        Ok(())
    }

    fn skip_space(&mut self) {
        self.at += space(self.rest());
    }

    /// Takes `c`, with white space in front of it.
    fn take(&mut self, c: char) -> bool {
        let before = space(self.rest());
        let found = self.rest()[before..].starts_with(c);
        if found {
            self.at += before + c.len_utf8();
        }
        found
    }

    /// Text with interpolations, up to the closing quote or the end.
    ///
    /// A run of backslashes counts in front of `${` and of the quote only: pairs are halved, an
    /// odd one takes the meaning away from what follows.
    fn text(&mut self, quote: Option<char>) -> Parsed<Vec<Part>> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        loop {
            let backslashes = self.rest().bytes().take_while(|b| *b == b'\\').count();
            let next = &self.rest()[backslashes..];
            let special = if next.starts_with("${") {
                2
            } else if quote.is_some_and(|quote| next.starts_with(quote)) {
                1
            } else {
                0
            };
            if special > 0 {
                plain.extend(std::iter::repeat_n('\\', backslashes / 2));
                self.at += backslashes;
                if backslashes % 2 == 1 {
                    plain.push_str(&next[..special]);
                    self.at += special;
                } else if special == 2 {
                    if !plain.is_empty() {
                        parts.push(Part::Text(std::mem::take(&mut plain)));
                    }
                    parts.push(Part::Reference(self.reference()?));
                } else {
                    self.at += 1;
                    break;
                }
                continue;
            }
            plain.extend(std::iter::repeat_n('\\', backslashes));
            self.at += backslashes;
            let Some(c) = next.chars().next() else {
                if quote.is_some() {
                    return self.fail("a quote is not closed");
                }
                break;
            };
            plain.push(c);
            self.at += c.len_utf8();
        }
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        Ok(parts)
    }

    /// `${...}`, from its `$`.
    fn reference(&mut self) -> Parsed<Reference> {
        self.enter()?;
        self.at += 2;
        self.skip_space();
        let dots = self.rest().bytes().take_while(|b| *b == b'.').count();
        self.at += dots;
        let mut steps = vec![self.bracketed_or_step()?];
        let mut has_bracket = self.text[..self.at].ends_with(']');
        loop {
            if self.rest().starts_with('.') {
                self.at += 1;
                steps.push(self.step()?);
            } else if self.rest().starts_with('[') {
                has_bracket = true;
                steps.push(self.bracketed_or_step()?);
            } else {
                break;
            }
        }
        let reference = if self.take('}') {
            Reference::Key { dots, steps }
        } else if dots == 0 && !has_bracket && self.take(':') {
            if let Some(Step::Name(bad)) = steps.iter().find(|step| !is_resolver_name(step)) {
                return self.fail(&format!("`{bad}` cannot be the name of a resolver"));
            }
            self.skip_space();
            Reference::Call {
                name: steps,
                arguments: self.sequence('}')?,
            }
        } else {
            return self.fail("expected `}`");
        };
        self.depth -= 1;
        Ok(reference)
    }

    fn bracketed_or_step(&mut self) -> Parsed<Step> {
        if !self.rest().starts_with('[') {
            return self.step();
        }
        self.at += 1;
        let step = self.step()?;
        if !self.rest().starts_with(']') {
            return self.fail("expected `]`");
        }
        self.at += 1;
        Ok(step)
    }

    fn step(&mut self) -> Parsed<Step> {
        if self.rest().starts_with("${") {
            return Ok(Step::Reference(Box::new(self.reference()?)));
        }
        let len = self
            .rest()
            .find(|c| "\\{}()[]:. \t'\"".contains(c))
            .unwrap_or(self.rest().len());
        if len == 0 {
            return self.fail("expected a key");
        }
        let name = self.rest()[..len].to_string();
        self.at += len;
        Ok(Step::Name(name))
    }

    /// Elements with commas between them, up to `close`. An element left out is an empty text.
    fn sequence(&mut self, close: char) -> Parsed<Vec<Expression>> {
        let mut elements = Vec::new();
        if self.take(close) {
            return Ok(elements);
        }
        loop {
            let before = space(self.rest());
            if self.rest()[before..].starts_with([',', close]) {
                elements.push(Expression::Text(String::new()));
            } else {
                elements.push(self.element()?);
            }
            if self.take(close) {
                return Ok(elements);
            }
            if !self.take(',') {
                return self.fail(&format!("expected `,` or `{close}`"));
            }
            self.skip_space();
        }
    }

    fn element(&mut self) -> Parsed<Expression> {
        self.enter()?;
        let element = match self.rest().chars().next() {
            Some('[') => {
                self.at += 1;
                self.skip_space();
                Expression::List(self.sequence(']')?)
            }
            Some('{') => {
                self.at += 1;
                self.skip_space();
                self.dict()?
            }
            Some(quote @ ('\'' | '"')) => {
                self.at += 1;
                Expression::Joined(self.text(Some(quote))?)
            }
            _ => self.primitive(true)?,
        };
        self.depth -= 1;
        Ok(element)
    }

    fn dict(&mut self) -> Parsed<Expression> {
        let mut pairs = Vec::new();
        if self.take('}') {
            return Ok(Expression::Dict(pairs));
        }
        loop {
            let key = match self.primitive(false)? {
                Expression::Text(text) => Key::from(text),
                Expression::Int(value) => Key::new(value.to_string(), KeyKind::Integer),
                Expression::Float(value) => Key::new(python::float(value), KeyKind::Float),
                Expression::Bool(value) => Key::new(value.to_string(), KeyKind::Boolean),
                _ => return self.fail("null cannot be a key"),
            };
            if !self.take(':') {
                return self.fail("expected `:`");
            }
            self.skip_space();
            pairs.push((key, self.element()?));
            if self.take('}') {
                return Ok(Expression::Dict(pairs));
            }
            if !self.take(',') {
                return self.fail("expected `,` or `}`");
            }
            self.skip_space();
        }
    }

    /// A bare value: one token gives it its type, several are joined to a text.
    fn primitive(&mut self, is_value: bool) -> Parsed<Expression> {
        let mut tokens = Vec::new();
        while let Some((expression, len)) = self.token(is_value)? {
            self.at += len;
            tokens.push(expression);
        }
        match tokens.len() {
            0 => self.fail("a value is missing here"),
            1 => Ok(tokens.remove(0).typed),
            _ => {
                let parts: Vec<Part> = tokens.into_iter().map(|token| token.part).collect();
                if parts.iter().all(|part| matches!(part, Part::Text(_))) {
                    let join = |part| match part {
                        Part::Text(text) => text,
                        Part::Reference(_) => String::new(),
                    };
                    return Ok(Expression::Text(parts.into_iter().map(join).collect()));
                }
                Ok(Expression::Joined(parts))
            }
        }
    }

    /// The next token of a bare value, and how much of the text is still to be taken for it.
    fn token(&mut self, is_value: bool) -> Parsed<Option<(Token, usize)>> {
        let rest = self.rest();
        if is_value && rest.starts_with("${") {
            let reference = self.reference()?;
            let token = Token {
                typed: Expression::Reference(reference.clone()),
                part: Part::Reference(reference),
            };
            return Ok(Some((token, 0)));
        }
        let before = space(rest);
        match rest[before..].chars().next() {
            None | Some(',' | ']' | '}' | '[' | '{' | '\'' | '"') if before == 0 => {
                return Ok(None);
            }
            Some(',' | ']' | '}') => return Ok(None),
            Some(':') if is_value => {
                let after = space(&rest[before + 1..]);
                return Ok(Some((
                    Token::text(rest, before + 1 + after),
                    before + 1 + after,
                )));
            }
            Some(':') => return Ok(None),
            _ => {}
        }
        if before > 0 {
            return Ok(Some((Token::text(rest, before), before)));
        }
        let escapes = lexer::escapes(rest);
        let float = lexer::float(rest);
        let sign = usize::from(rest.starts_with(['+', '-']));
        let int = match lexer::integer(&rest[sign..]) {
            0 => 0,
            len => sign + len,
        };
        let word = lexer::identifier(rest);
        let other = lexer::unquoted_char(rest);
        let longest = float.max(int).max(word).max(other).max(escapes);
        if longest == 0 {
            return self.fail("this character must be quoted or escaped");
        }
        let text = &rest[..longest];
        let too_large = || SyntaxError {
            message: "this number is too large".to_string(),
            at: self.at,
        };
        let typed = if float == longest {
            Expression::Float(python::parse_float(text).ok_or_else(too_large)?)
        } else if int == longest {
            Expression::Int(python::parse_int(text).ok_or_else(too_large)?)
        } else if text.eq_ignore_ascii_case("true") || text.eq_ignore_ascii_case("false") {
            Expression::Bool(text.eq_ignore_ascii_case("true"))
        } else if text.eq_ignore_ascii_case("null") {
            Expression::Null
        } else if escapes == longest {
            let plain: String = text.chars().skip(1).step_by(2).collect();
            let token = Token {
                typed: Expression::Text(plain.clone()),
                part: Part::Text(plain),
            };
            return Ok(Some((token, longest)));
        } else {
            Expression::Text(text.to_string())
        };
        let part = Part::Text(text.to_string());
        Ok(Some((Token { typed, part }, longest)))
    }
}

/// A token as a value of its own, and as a piece of a longer text.
struct Token {
    typed: Expression,
    part: Part,
}

impl Token {
    fn text(rest: &str, len: usize) -> Self {
        Token {
            typed: Expression::Text(rest[..len].to_string()),
            part: Part::Text(rest[..len].to_string()),
        }
    }
}

fn is_resolver_name(step: &Step) -> bool {
    match step {
        Step::Name(name) => lexer::identifier(name) == name.len(),
        Step::Reference(_) => true,
    }
}

fn space(text: &str) -> usize {
    text.bytes()
        .take_while(|b| matches!(b, b' ' | b'\t'))
        .count()
}
