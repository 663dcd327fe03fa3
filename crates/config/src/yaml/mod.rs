//! Reads YAML into nodes with origins, as PyYAML's safe loader and OmegaConf do.
//!
//! The scanner is `saphyr-parser` (YAML 1.2); the differences that matter are made up for here:
//! YAML 1.1 scalars (see [`scalar`]), merge keys, duplicate text keys refused, and `?` inside
//! `{}` or `[]`, which PyYAML takes for a key indicator.
//!
//! Errors: syntax, duplicate and null keys, unknown tags, aliases inside their own anchor, nesting
//! deeper than [`MAX_DEPTH`], and trees larger than [`MAX_NODES`] once aliases are expanded.

mod offsets;
pub(crate) mod scalar;
pub(crate) mod write;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use offsets::Offsets;
use saphyr_parser::{Event, Parser, ScalarStyle, Span as Marks, Tag};
use scalar::Integer;

use crate::diagnostic::Diagnostic;
use crate::origin::{Layer, Origin, SourceFile, Span};
use crate::value::{Key, KeyKind, Map, Node, Value};

/// Deepest nesting of lists and mappings.
pub(crate) const MAX_DEPTH: usize = 100;
/// Most nodes in a file, so that a few aliases cannot ask for a terabyte.
pub(crate) const MAX_NODES: usize = 200_000;

impl Node {
    /// Reads YAML that is no config: `name` is what messages call it.
    pub fn from_yaml(name: &str, text: &str) -> Result<Self, Diagnostic> {
        let file = SourceFile {
            path: name.to_owned(),
            text: text.to_owned(),
        };
        read(&Arc::new(Layer {
            file: Arc::new(file),
            chosen_by: None,
        }))
    }
}

/// Reads one document. An empty file is null.
pub(crate) fn read(layer: &Arc<Layer>) -> Result<Node, Diagnostic> {
    let text = &layer.file.text;
    let text_start = if text.starts_with('\u{feff}') { 3 } else { 0 };
    let mut reader = Reader {
        layer,
        offsets: Offsets::new(text, text_start),
        stack: Vec::new(),
        anchors: HashMap::new(),
        nodes: 0,
        document: None,
    };
    let mut parser = Parser::new_from_str(&text[text_start..]);
    while let Some(event) = parser.next_event() {
        match event {
            Ok((event, marks)) => reader.event(event, marks)?,
            Err(error) => {
                let at = reader.offsets.byte(error.marker().index());
                let origin = Origin::file(layer, Span::new(at, at + 1));
                return Err(Diagnostic::new(format!(
                    "cannot read {}: it is not valid YAML",
                    layer.file.path
                ))
                .at(&origin)
                .label(error.info()));
            }
        }
    }
    let empty = || Node::new(Value::Null, Origin::file(layer, Span::default()));
    Ok(reader.document.take().unwrap_or_else(empty))
}

/// A list or mapping being read.
struct Frame {
    open: Open,
    anchor: usize,
    start: Span,
    in_flow: bool,
}

enum Open {
    List(Vec<Node>),
    Map {
        own: Map,
        merged: Vec<Node>,
        key: Option<PendingKey>,
    },
}

enum PendingKey {
    Key(Key, Span),
    Merge,
}

struct Reader<'a> {
    layer: &'a Arc<Layer>,
    offsets: Offsets,
    stack: Vec<Frame>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    document: Option<Node>,
}

impl Reader<'_> {
    fn event(&mut self, event: Event<'_>, marks: Marks) -> Result<(), Diagnostic> {
        let span = self.offsets.span(marks);
        match event {
            Event::DocumentStart(_) if self.document.is_some() => Err(self.error(
                "a second document starts here",
                span,
                "a configuration file holds one document",
            )),
            Event::Scalar(text, style, anchor, tag) => {
                self.scalar(text, style, anchor, tag.as_deref(), span)
            }
            Event::Alias(anchor) => {
                let Some(node) = self.anchors.get(&anchor) else {
                    return Err(self.error("an alias inside its own anchor", span, "a cycle"));
                };
                let node = node.clone();
                self.count(node.size(), span)?;
                self.place(node, span)
            }
            Event::SequenceStart(anchor, tag) => {
                self.check_tag(tag.as_deref(), "seq", span)?;
                self.open(Open::List(Vec::new()), anchor, span)
            }
            Event::MappingStart(anchor, tag) => {
                self.check_tag(tag.as_deref(), "map", span)?;
                let open = Open::Map {
                    own: Map::new(),
                    merged: Vec::new(),
                    key: None,
                };
                self.open(open, anchor, span)
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(span),
            _ => Ok(()),
        }
    }

    fn open(&mut self, open: Open, anchor: usize, span: Span) -> Result<(), Diagnostic> {
        if self.stack.len() >= MAX_DEPTH {
            return Err(self.error(
                &format!("nested deeper than {MAX_DEPTH} levels"),
                span,
                "here",
            ));
        }
        let bracket = matches!(
            self.layer.file.text.as_bytes().get(span.start as usize),
            Some(b'[' | b'{')
        );
        let in_flow = bracket || self.stack.last().is_some_and(|frame| frame.in_flow);
        self.stack.push(Frame {
            open,
            anchor,
            start: span,
            in_flow,
        });
        Ok(())
    }

    fn close(&mut self, end: Span) -> Result<(), Diagnostic> {
        let Some(frame) = self.stack.pop() else {
            return Ok(());
        };
        let span = Span {
            start: frame.start.start,
            end: end.end.max(frame.start.end),
        };
        let value = match frame.open {
            Open::List(items) => Value::List(items),
            Open::Map { own, merged, .. } => Value::Map(with_merged(own, merged)),
        };
        let node = Node::new(value, Origin::file(self.layer, span));
        self.count(1, span)?;
        if frame.anchor > 0 {
            self.count(node.size(), span)?;
            self.anchors.insert(frame.anchor, node.clone());
        }
        self.place(node, span)
    }

    fn scalar(
        &mut self,
        text: Cow<'_, str>,
        style: ScalarStyle,
        anchor: usize,
        tag: Option<&Tag>,
        span: Span,
    ) -> Result<(), Diagnostic> {
        let plain = style == ScalarStyle::Plain;
        let in_flow = self.stack.last().is_some_and(|frame| frame.in_flow);
        if plain && in_flow && text.starts_with(['|', '>']) {
            return Err(self.error("a block text inside [] or {}", span, "put quotes around it"));
        }
        if plain && in_flow && text.contains('?') {
            return Err(self
                .error(
                    &format!(
                        "cannot read {}: `?` inside [] or {{}}",
                        self.layer.file.path
                    ),
                    span,
                    "put quotes around it",
                )
                .note("inside [] and {} a plain `?` marks a key"));
        }
        if plain && tag.is_none() && text == "<<" && self.expects_key() {
            if let Some(Frame {
                open: Open::Map { key, .. },
                ..
            }) = self.stack.last_mut()
            {
                *key = Some(PendingKey::Merge);
            }
            return Ok(());
        }
        let value = self.scalar_value(&text, plain, tag, span)?;
        let node = Node::new(value, Origin::file(self.layer, span));
        self.count(1, span)?;
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        self.place(node, span)
    }

    fn scalar_value(
        &self,
        text: &str,
        plain: bool,
        tag: Option<&Tag>,
        span: Span,
    ) -> Result<Value, Diagnostic> {
        // A lone `!` changes nothing, as in PyYAML.
        let tag = tag.filter(|tag| !(tag.handle.is_empty() && tag.suffix == "!"));
        let Some(tag) = tag else {
            if !plain {
                return Ok(Value::Str(text.to_string()));
            }
            return scalar::resolve(text)
                .ok_or_else(|| self.error("an integer beyond 128 bits", span, "too large"));
        };
        let name = tag.suffix.as_str();
        let value = match (tag.is_yaml_core_schema(), name) {
            (true, "str") => Some(Value::Str(text.to_string())),
            (true, "int") => match scalar::integer(text) {
                Integer::Value(value) => Some(Value::Int(value)),
                Integer::TooLarge | Integer::Not => None,
            },
            (true, "float") => scalar::float(text)
                .or_else(|| crate::python::parse_float(text))
                .map(Value::Float),
            (true, "bool") => scalar::boolean(text).map(Value::Bool),
            (true, "null") => Some(Value::Null),
            _ => return Err(self.unknown_tag(tag, span)),
        };
        value
            .ok_or_else(|| self.error(&format!("`{text}` is not of the type `!!{name}`"), span, ""))
    }

    /// Puts a finished node where it belongs: the document, a list, or a mapping.
    fn place(&mut self, node: Node, span: Span) -> Result<(), Diagnostic> {
        let layer = self.layer;
        let parent = self.parent_key();
        let Some(frame) = self.stack.last_mut() else {
            self.document = Some(node);
            return Ok(());
        };
        match &mut frame.open {
            Open::List(items) => items.push(node),
            Open::Map { own, merged, key } => match key.take() {
                None => *key = Some(PendingKey::Key(as_key(node, parent)?, span)),
                Some(PendingKey::Merge) => add_merge(merged, node)?,
                Some(PendingKey::Key(name, key_span)) => {
                    if let (KeyKind::Text, Some(first)) = (name.kind(), own.get(&name)) {
                        let first_line = first.origin.at_key().at();
                        return Err(Diagnostic::new(format!("duplicate key `{name}`"))
                            .at(&Origin::file(layer, key_span))
                            .label("given a second time")
                            .note(format!("first given {first_line}")));
                    }
                    let mut node = node;
                    node.origin.key = Some(key_span);
                    own.insert(name, node);
                }
            },
        }
        Ok(())
    }

    fn expects_key(&self) -> bool {
        matches!(
            self.stack.last(),
            Some(Frame {
                open: Open::Map { key: None, .. },
                ..
            })
        )
    }

    /// The key under which the innermost open mapping stands, for messages.
    fn parent_key(&self) -> String {
        let keys: Vec<String> = self
            .stack
            .iter()
            .filter_map(|frame| match &frame.open {
                Open::Map {
                    key: Some(PendingKey::Key(key, _)),
                    ..
                } => Some(key.to_string()),
                Open::List(items) => Some(items.len().to_string()),
                Open::Map { .. } => None,
            })
            .collect();
        keys.join(".")
    }

    fn count(&mut self, nodes: usize, span: Span) -> Result<(), Diagnostic> {
        self.nodes += nodes;
        if self.nodes > MAX_NODES {
            return Err(self.error(
                &format!("more than {MAX_NODES} values in one file"),
                span,
                "",
            ));
        }
        Ok(())
    }

    fn check_tag(&self, tag: Option<&Tag>, expected: &str, span: Span) -> Result<(), Diagnostic> {
        match tag {
            Some(tag) if !(tag.is_yaml_core_schema() && tag.suffix == expected) => {
                Err(self.unknown_tag(tag, span))
            }
            _ => Ok(()),
        }
    }

    fn unknown_tag(&self, tag: &Tag, span: Span) -> Diagnostic {
        let written = if tag.is_yaml_core_schema() {
            format!("!!{}", tag.suffix)
        } else {
            tag.to_string()
        };
        self.error(
            &format!("the tag `{written}` has no meaning here"),
            span,
            "",
        )
        .note("tags: !!str, !!int, !!float, !!bool, !!null, !!seq, !!map")
    }

    fn error(&self, message: &str, span: Span, label: &str) -> Diagnostic {
        Diagnostic::new(message)
            .at(&Origin::file(self.layer, span))
            .label(label)
    }
}

fn as_key(node: Node, parent: String) -> Result<Key, Diagnostic> {
    let problem = match node.value {
        Value::Str(text) => return Ok(Key::from(text)),
        Value::Int(value) => return Ok(Key::new(value.to_string(), KeyKind::Integer)),
        Value::Float(value) => {
            return Ok(Key::new(crate::python::float(value), KeyKind::Float));
        }
        Value::Bool(value) => return Ok(Key::new(value.to_string(), KeyKind::Boolean)),
        Value::Null => "null",
        Value::List(_) => "a list",
        Value::Map(_) => "a mapping",
    };
    let place = if parent.is_empty() {
        String::new()
    } else {
        format!(" in `{parent}`")
    };
    Err(Diagnostic::new(format!("{problem} cannot be a key{place}"))
        .at(&node.origin)
        .label("a key is text, a number or a boolean"))
}

/// The value of `<<`: a mapping, or a list of mappings. A later one has priority over an earlier
/// one, as in PyYAML from 6.0.3 (YAML 1.1 says the opposite).
fn add_merge(merged: &mut Vec<Node>, node: Node) -> Result<(), Diagnostic> {
    let refuse = |node: &Node| {
        Diagnostic::new("`<<` takes a mapping or a list of mappings")
            .at(&node.origin)
            .label(format!("this is {}", node.describe()))
    };
    match node.value {
        Value::Map(_) => merged.push(node),
        Value::List(items) => {
            for item in items {
                if item.as_map().is_none() {
                    return Err(refuse(&item));
                }
                merged.push(item);
            }
        }
        _ => return Err(refuse(&node)),
    }
    Ok(())
}

fn with_merged(own: Map, merged: Vec<Node>) -> Map {
    if merged.is_empty() {
        return own;
    }
    let mut all = Map::new();
    for node in merged {
        if let Value::Map(map) = node.value {
            all.extend(map);
        }
    }
    all.extend(own);
    all
}
