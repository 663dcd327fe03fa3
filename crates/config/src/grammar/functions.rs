//! The functions of the override grammar: casts, sweeps, and what orders or tags them.

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
        "int" => cast(call, Cast::Int),
        "float" => cast(call, Cast::Float),
        "str" => cast(call, Cast::Str),
        "bool" => cast(call, Cast::Bool),
        "choice" => choice(call),
        "range" => range(call),
        "interval" => interval(call),
        "glob" => glob(call),
        "tag" => tag(call),
        "sort" => sort(call),
        "shuffle" => shuffle(call),
        name => Err(format!(
            "unknown function `{name}`; there are {}",
            NAMES.join(", ")
        )),
    }?;
    Ok(Element { content, span })
}

#[derive(Clone, Copy)]
enum Cast {
    Int,
    Float,
    Str,
    Bool,
}

fn cast(mut call: Call, to: Cast) -> Result<Content, String> {
    if let Some(value) = call.take_named("value") {
        if !call.positional.is_empty() {
            return Err("a cast takes one value by name, or values without names".to_string());
        }
        call.positional.push(value);
    }
    call.no_more_names()?;
    let name = call.name;
    match call.positional.len() {
        0 => Err(format!("{name}() takes a value")),
        1 => cast_content(call.positional.remove(0).content, to),
        _ => cast_content(Content::Sweep(Sweep::simple(call.positional)), to),
    }
}

fn cast_content(content: Content, to: Cast) -> Result<Content, String> {
    let each = |item: Element| -> Result<Element, String> {
        Ok(Element {
            content: cast_content(item.content, to)?,
            span: item.span,
        })
    };
    Ok(match content {
        Content::List(items) => {
            Content::List(items.into_iter().map(each).collect::<Result<_, _>>()?)
        }
        Content::Dict(pairs) => Content::Dict(
            pairs
                .into_iter()
                .map(|(key, span, item)| Ok((key, span, each(item)?)))
                .collect::<Result<_, String>>()?,
        ),
        Content::Sweep(sweep) => Content::Sweep(cast_sweep(sweep, to)?),
        scalar => cast_scalar(scalar, to)?,
    })
}

fn cast_sweep(sweep: Sweep, to: Cast) -> Result<Sweep, String> {
    let number = |number: Number| match cast_scalar(number.content(), to)? {
        Content::Int(value) => Ok(Number::Int(value)),
        Content::Float(value) => Ok(Number::Float(value)),
        _ => Err("a range() can be cast to int or float only".to_string()),
    };
    Ok(match sweep {
        Sweep::Choice {
            items, is_simple, ..
        } => Sweep::Choice {
            items: items
                .into_iter()
                .map(|item| {
                    Ok(Element {
                        content: cast_content(item.content, to)?,
                        span: item.span,
                    })
                })
                .collect::<Result<_, String>>()?,
            is_simple,
            shuffled: false,
        },
        Sweep::Range {
            start, stop, step, ..
        } => Sweep::Range {
            start: number(start)?,
            stop: number(stop)?,
            step: number(step)?,
            shuffled: false,
        },
        Sweep::Interval => match to {
            Cast::Int | Cast::Float => Sweep::Interval,
            Cast::Str | Cast::Bool => {
                return Err("an interval() can be cast to int or float only".to_string());
            }
        },
        Sweep::Glob { .. } => return Err("a glob() cannot be cast".to_string()),
    })
}

fn cast_scalar(content: Content, to: Cast) -> Result<Content, String> {
    let content = match content {
        Content::Quoted(text) => Content::Text(text),
        other => other,
    };
    Ok(match (to, content) {
        (Cast::Int, Content::Text(text)) => Content::Int(
            python::parse_int(&text).ok_or_else(|| format!("cannot read `{text}` as an int"))?,
        ),
        (Cast::Int, Content::Int(value)) => Content::Int(value),
        (Cast::Int, Content::Bool(value)) => Content::Int(i128::from(value)),
        (Cast::Int, Content::Float(value)) if value.is_finite() => Content::Int(value as i128),
        (Cast::Float, Content::Text(text)) => Content::Float(
            python::parse_float(&text).ok_or_else(|| format!("cannot read `{text}` as a float"))?,
        ),
        (Cast::Float, Content::Int(value)) => Content::Float(value as f64),
        (Cast::Float, Content::Float(value)) => Content::Float(value),
        (Cast::Float, Content::Bool(value)) => Content::Float(f64::from(u8::from(value))),
        // Quoted, so that a job of a sweep reads the same text again.
        (Cast::Str, Content::Text(text)) => Content::Quoted(text),
        (Cast::Str, Content::Int(value)) => Content::Quoted(value.to_string()),
        (Cast::Str, Content::Float(value)) => Content::Quoted(python::float(value)),
        (Cast::Str, Content::Bool(value)) => Content::Quoted(value.to_string()),
        (Cast::Bool, Content::Text(text)) => match text.to_lowercase().as_str() {
            "true" => Content::Bool(true),
            "false" => Content::Bool(false),
            _ => {
                return Err(format!(
                    "cannot cast `{text}` to bool; it takes true and false"
                ));
            }
        },
        (Cast::Bool, Content::Int(value)) => Content::Bool(value != 0),
        (Cast::Bool, Content::Float(value)) => Content::Bool(value != 0.0),
        (Cast::Bool, Content::Bool(value)) => Content::Bool(value),
        (_, other) => return Err(format!("cannot cast {}", describe(&other))),
    })
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
        Content::Sweep(sweep) => Ok(Content::Sweep(sweep)),
        other => Err(format!(
            "the last argument of tag() must be a sweep, not {}",
            describe(&other)
        )),
    }
}

/// The one list or sweep that `sort` and `shuffle` take, or several values as a simple choice.
fn list_or_sweep(call: &mut Call) -> Result<Content, String> {
    for name in ["list", "sweep"] {
        if let Some(value) = call.take_named(name) {
            call.positional.insert(0, value);
        }
    }
    call.no_more_names()?;
    match call.positional.len() {
        0 => Err(format!("{}() takes at least one value", call.name)),
        1 => Ok(call.positional.remove(0).content),
        _ => {
            refuse_sweeps(&call.positional)?;
            Ok(Content::Sweep(Sweep::simple(std::mem::take(
                &mut call.positional,
            ))))
        }
    }
}

fn sort(mut call: Call) -> Result<Content, String> {
    let reverse = match call.take_named("reverse").map(|value| value.content) {
        None => false,
        Some(Content::Bool(reverse)) => reverse,
        Some(other) => {
            return Err(format!(
                "`reverse` must be a bool, not {}",
                describe(&other)
            ));
        }
    };
    Ok(match list_or_sweep(&mut call)? {
        Content::List(items) => Content::List(sorted(items, reverse)?),
        Content::Sweep(Sweep::Choice {
            items,
            is_simple,
            shuffled,
        }) => Content::Sweep(Sweep::Choice {
            items: sorted(items, reverse)?,
            is_simple,
            shuffled,
        }),
        Content::Sweep(Sweep::Range {
            start,
            stop,
            step,
            shuffled,
        }) => {
            let goes_wrong_way = if reverse {
                start.as_f64() < stop.as_f64()
            } else {
                start.as_f64() > stop.as_f64()
            };
            let (start, stop, step) = if goes_wrong_way {
                turned(start, stop, step).ok_or("the range() is too large")?
            } else {
                (start, stop, step)
            };
            Content::Sweep(Sweep::Range {
                start,
                stop,
                step,
                shuffled,
            })
        }
        Content::Sweep(_) => return Err("sort() takes a list, a choice or a range".to_string()),
        single => single,
    })
}

/// The range that runs the other way. Bounds move by one step, since `stop` is left out.
fn turned(start: Number, stop: Number, step: Number) -> Option<(Number, Number, Number)> {
    let down = start.as_f64() > stop.as_f64();
    Some(match (start, stop, step) {
        (Number::Int(start), Number::Int(stop), Number::Int(step)) => {
            let shift = if down {
                step.checked_abs()?
            } else {
                -step.checked_abs()?
            };
            (
                Number::Int(stop.checked_add(shift)?),
                Number::Int(start.checked_add(shift)?),
                Number::Int(step.checked_neg()?),
            )
        }
        _ => {
            let size = step.as_f64().abs();
            let shift = if down { size } else { -size };
            (
                Number::Float(stop.as_f64() + shift),
                Number::Float(start.as_f64() + shift),
                Number::Float(-step.as_f64()),
            )
        }
    })
}

fn sorted(mut items: Vec<Element>, reverse: bool) -> Result<Vec<Element>, String> {
    enum SortKey {
        Number(f64),
        Text(String),
    }
    let key = |item: &Element| match &item.content {
        Content::Int(value) => Ok(SortKey::Number(*value as f64)),
        Content::Float(value) => Ok(SortKey::Number(*value)),
        Content::Bool(value) => Ok(SortKey::Number(f64::from(u8::from(*value)))),
        Content::Text(text) | Content::Quoted(text) => Ok(SortKey::Text(text.clone())),
        other => Err(format!("sort() cannot order {}", describe(other))),
    };
    let keys: Vec<SortKey> = items.iter().map(key).collect::<Result<_, _>>()?;
    let numbers = keys.iter().filter(|k| matches!(k, SortKey::Number(_)));
    if ![0, keys.len()].contains(&numbers.count()) {
        return Err("sort() cannot order numbers and texts together".to_string());
    }
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by(|a, b| {
        let ordering = match (&keys[*a], &keys[*b]) {
            (SortKey::Number(a), SortKey::Number(b)) => a.total_cmp(b),
            (SortKey::Text(a), SortKey::Text(b)) => a.cmp(b),
            _ => std::cmp::Ordering::Equal,
        };
        // Reversed by comparison and not afterwards: equal values keep their order, as in Python.
        if reverse {
            ordering.reverse()
        } else {
            ordering
        }
    });
    let mut slots: Vec<Option<Element>> = items.drain(..).map(Some).collect();
    Ok(order
        .into_iter()
        .filter_map(|at| slots[at].take())
        .collect())
}

fn shuffle(mut call: Call) -> Result<Content, String> {
    Ok(match list_or_sweep(&mut call)? {
        Content::Sweep(Sweep::Choice {
            items, is_simple, ..
        }) => Content::Sweep(Sweep::Choice {
            items,
            is_simple,
            shuffled: true,
        }),
        Content::Sweep(Sweep::Range {
            start, stop, step, ..
        }) => Content::Sweep(Sweep::Range {
            start,
            stop,
            step,
            shuffled: true,
        }),
        Content::Sweep(_) => return Err("shuffle() takes a list, a choice or a range".to_string()),
        Content::List(items) => {
            let shuffled = Sweep::Choice {
                items,
                is_simple: true,
                shuffled: true,
            };
            Content::List(shuffled.values(Span::default(), Vec::new)?)
        }
        single => Content::List(vec![Element {
            content: single,
            span: Span::default(),
        }]),
    })
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
