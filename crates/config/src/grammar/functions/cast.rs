//! `int`, `float`, `str` and `bool`: they reach into lists, dicts and sweeps.

use super::Call;
use crate::grammar::sweep::{Number, Sweep};
use crate::grammar::{Content, Element};
use crate::python;

#[derive(Clone, Copy)]
pub(super) enum Cast {
    Int,
    Float,
    Str,
    Bool,
}

pub(super) fn cast(mut call: Call, to: Cast) -> Result<Content, String> {
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
        (Cast::Bool, Content::Null) => Content::Bool(false),
        (_, other) => return Err(format!("cannot cast {}", super::describe(&other))),
    })
}
