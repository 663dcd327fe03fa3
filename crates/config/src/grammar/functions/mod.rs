//! The functions of the override grammar: casts, sweeps, and what orders or tags them.

mod cast;
mod order;

use super::sweep::{Number, Sweep};
use super::{Content, Element};
use crate::origin::Span;
use crate::python;

const NAMES: [&str; 11] = [
    "bool", "choice", "float", "glob", "int", "interval", "range", "shuffle", "sort", "str", "tag",
];

/// A call, with its arguments parsed.
pub(crate) struct Call {
    name: String,
    pub positional: Vec<Element>,
    pub named: Vec<(String, Element)>,
}

impl Call {
    pub(crate) fn new(name: &str) -> Self {
        Call {
            name: name.to_string(),
            positional: Vec::new(),
            named: Vec::new(),
        }
    }

    fn take_named(&mut self, name: &str) -> Option<Element> {
        let at = self.named.iter().position(|(given, _)| given == name)?;
        Some(self.named.remove(at).1)
    }

    /// The arguments of a function whose parameters all have names, in order.
    fn bind<const N: usize>(mut self, names: [&str; N]) -> Result<[Option<Element>; N], String> {
        if self.positional.len() > N {
            return Err(format!("{}() takes at most {N} arguments", self.name));
        }
        let mut bound = [const { None }; N];
        for (slot, value) in bound.iter_mut().zip(std::mem::take(&mut self.positional)) {
            *slot = Some(value);
        }
        for (slot, name) in bound.iter_mut().zip(names) {
            if let Some(value) = self.take_named(name) {
                if slot.is_some() {
                    return Err(format!("{}() was given `{name}` twice", self.name));
                }
                *slot = Some(value);
            }
        }
        self.no_more_names()?;
        Ok(bound)
    }

    fn no_more_names(&self) -> Result<(), String> {
        match self.named.first() {
            Some((name, _)) => Err(format!("{}() has no argument `{name}`", self.name)),
            None => Ok(()),
        }
    }
}

/// Runs a call; `span` becomes that of the result.
pub(crate) fn evaluate(call: Call, span: Span) -> Result<Element, String> {
    let content = match call.name.as_str() {
        "int" => cast::cast(call, cast::Cast::Int),
        "float" => cast::cast(call, cast::Cast::Float),
        "str" => cast::cast(call, cast::Cast::Str),
        "bool" => cast::cast(call, cast::Cast::Bool),
        "choice" => choice(call),
        "range" => range(call),
        "interval" => interval(call),
        "glob" => glob(call),
        "tag" => tag(call),
        "sort" => order::sort(call),
        "shuffle" => order::shuffle(call),
        name => Err(format!(
            "unknown function `{name}`; there are {}",
            NAMES.join(", ")
        )),
    }?;
    Ok(Element { content, span })
}

fn choice(mut call: Call) -> Result<Content, String> {
    call.no_more_names()?;
    if call.positional.is_empty() {
        return Err("choice() takes at least one value".to_string());
    }
    if let [
        Element {
            content:
                Content::Sweep(Sweep::Choice {
                    is_simple,
                    shuffled,
                    ..
                }),
            ..
        },
    ] = &call.positional[..]
    {
        if !is_simple {
            return Err("choice() inside choice()".to_string());
        }
        let shuffled = *shuffled;
        if let Content::Sweep(Sweep::Choice { items, .. }) = call.positional.remove(0).content {
            return Ok(Content::Sweep(Sweep::Choice {
                items,
                is_simple: false,
                shuffled,
            }));
        }
    }
    refuse_sweeps(&call.positional)?;
    Ok(Content::Sweep(Sweep::Choice {
        items: call.positional,
        is_simple: false,
        shuffled: false,
    }))
}

fn range(call: Call) -> Result<Content, String> {
    let [start, stop, step] = call.bind(["start", "stop", "step"])?;
    let start = number(
        start.ok_or("range() takes a stop, or a start and a stop")?,
        "start",
    )?;
    let step = step.map_or(Ok(Number::Int(1)), |step| number(step, "step"))?;
    let (start, stop) = match stop {
        Some(stop) => (start, number(stop, "stop")?),
        None => (Number::Int(0), start),
    };
    Ok(Content::Sweep(Sweep::Range {
        start,
        stop,
        step,
        shuffled: false,
    }))
}

fn number(element: Element, name: &str) -> Result<Number, String> {
    match element.content {
        Content::Int(value) => Ok(Number::Int(value)),
        Content::Float(value) => Ok(Number::Float(value)),
        other => Err(format!(
            "`{name}` must be a number, not {}",
            describe(&other)
        )),
    }
}

fn interval(call: Call) -> Result<Content, String> {
    let [start, end] = call.bind(["start", "end"])?;
    number(start.ok_or("interval() takes a start and an end")?, "start")?;
    number(end.ok_or("interval() takes a start and an end")?, "end")?;
    Ok(Content::Sweep(Sweep::Interval))
}

fn glob(call: Call) -> Result<Content, String> {
    let [include, exclude] = call.bind(["include", "exclude"])?;
    let patterns = |element: Element| -> Result<Vec<String>, String> {
        let items = match element.content {
            Content::List(items) => items,
            _ => vec![element],
        };
        items
            .into_iter()
            .map(|item| match item.content {
                Content::Text(text) | Content::Quoted(text) => Ok(text),
                other => Err(format!("a pattern must be text, not {}", describe(&other))),
            })
            .collect()
    };
    Ok(Content::Sweep(Sweep::Glob {
        include: patterns(include.ok_or("glob() takes a pattern")?)?,
        exclude: exclude.map_or(Ok(Vec::new()), patterns)?,
    }))
}

/// Tags are for sweepers that search; the one here runs through everything.
fn tag(mut call: Call) -> Result<Content, String> {
    if let Some(sweep) = call.take_named("sweep") {
        call.positional.push(sweep);
    }
    call.no_more_names()?;
    let Some(last) = call.positional.pop() else {
        return Err("tag() takes tags and a sweep".to_string());
    };
    for tag in &call.positional {
        if !matches!(tag.content, Content::Text(_) | Content::Quoted(_)) {
            return Err(format!(
                "a tag must be text, not {}",
                describe(&tag.content)
            ));
        }
    }
    match last.content {
        Content::Sweep(Sweep::Glob { .. }) => Err("a glob() takes no tags".to_string()),
        Content::Sweep(sweep) => Ok(Content::Sweep(sweep)),
        other => Err(format!(
            "the last argument of tag() must be a sweep, not {}",
            describe(&other)
        )),
    }
}

fn refuse_sweeps(items: &[Element]) -> Result<(), String> {
    if items
        .iter()
        .any(|item| matches!(item.content, Content::Sweep(_)))
    {
        return Err("a sweep inside a sweep".to_string());
    }
    Ok(())
}

fn describe(content: &Content) -> String {
    match content {
        Content::Null => "null".to_string(),
        Content::Bool(value) => format!("the boolean `{value}`"),
        Content::Int(value) => format!("the integer `{value}`"),
        Content::Float(value) => format!("the float `{}`", python::float(*value)),
        Content::Text(text) | Content::Quoted(text) => format!("the text `{text}`"),
        Content::List(_) => "a list".to_string(),
        Content::Dict(_) => "a dict".to_string(),
        Content::Sweep(_) => "a sweep".to_string(),
    }
}
