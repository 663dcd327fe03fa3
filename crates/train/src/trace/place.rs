//! Where in a step something was done: what its span lies within.

use std::borrow::Cow;
use std::collections::HashMap;

use tt_tensor::profile::Event;

/// What an event lies within, the innermost of each kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Place<'a> {
    /// Not between steps, as a validation is.
    pub(super) is_in_step: bool,
    /// Part of the step: `forward`, `backward`, `optimizer` ...
    pub(super) part: Option<&'a str>,
    pub(super) module: Option<&'a str>,
    pub(super) operation: Option<&'a str>,
    /// Index of the kernel's span.
    pub(super) kernel: Option<usize>,
}

/// The place of each event, in their order.
pub(super) fn places(events: &[Event]) -> Vec<Place<'_>> {
    let mut threads: HashMap<_, Vec<usize>> = HashMap::new();
    for (index, event) in events.iter().enumerate() {
        threads.entry(event.thread).or_default().push(index);
    }
    let mut places = vec![Place::default(); events.len()];
    for mut order in threads.into_values() {
        // What begins first, and of those the longest, is around the others.
        order.sort_by_key(|&index| {
            let event = &events[index];
            (event.start, std::cmp::Reverse(event.length))
        });
        let mut around: Vec<usize> = Vec::new();
        for index in order {
            let event = &events[index];
            while around
                .last()
                .is_some_and(|&it| end(&events[it]) <= event.start)
            {
                around.pop();
            }
            let outer = around
                .last()
                .map(|&it| within(it, &events[it], &places[it]));
            places[index] = outer.unwrap_or_default();
            around.push(index);
        }
    }
    places
}

fn end(event: &Event) -> std::time::Duration {
    event.start + event.length
}

/// The place of what lies directly within the event at `index`.
fn within<'a>(index: usize, event: &'a Event, place: &Place<'a>) -> Place<'a> {
    let name = Some(match &event.name {
        Cow::Borrowed(name) => *name,
        Cow::Owned(name) => name.as_str(),
    });
    let place = place.clone();
    match event.kind {
        "step" => Place {
            is_in_step: true,
            ..place
        },
        "part" => Place {
            part: name,
            ..place
        },
        "module" | "module backward" => Place {
            module: name,
            ..place
        },
        "kernel" => Place {
            operation: name,
            kernel: Some(index),
            ..place
        },
        _ => place,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// `(kind, name, first millisecond, last)`.
    fn events(spans: &[(&'static str, &'static str, u64, u64)]) -> Vec<Event> {
        let event = |&(kind, name, first, last): &(&'static str, &'static str, u64, u64)| Event {
            name: name.into(),
            kind,
            start: Duration::from_millis(first),
            length: Duration::from_millis(last - first),
            thread: std::thread::current().id(),
            flops: 0,
            work: None,
        };
        spans.iter().map(event).collect()
    }

    #[test]
    fn a_launch_belongs_to_the_innermost_of_each_kind_around_it() {
        // In the order in which they end, those of the device last.
        let events = events(&[
            ("kernel", "fused::linear", 11, 14),
            ("module", "model.q_proj", 10, 15),
            ("kernel", "fused::attention", 16, 18),
            ("module", "model", 5, 19),
            ("part", "forward", 4, 20),
            ("kernel", "fused::step", 21, 23),
            ("part", "optimizer", 20, 30),
            ("step", "step 1", 0, 30),
            ("launch", "matmul", 11, 13),
            ("launch", "attention", 16, 18),
            ("launch", "optimizer_step", 21, 22),
            ("copy", "upload", 31, 32),
        ]);
        let places = places(&events);
        let told = |index: usize| {
            let place = &places[index];
            (place.part, place.module, place.operation)
        };
        let linear = (Some("forward"), Some("model.q_proj"), Some("fused::linear"));
        assert_eq!(told(8), linear);
        let attention = (Some("forward"), Some("model"), Some("fused::attention"));
        assert_eq!(told(9), attention);
        assert_eq!(told(10), (Some("optimizer"), None, Some("fused::step")));
        assert!(places[10].is_in_step);
        assert_eq!(places[11], Place::default());
    }
}
