//! What two answers have before them, where one or both are whole conversations: each is taken by itself.
//!
//! A prompt that stands beside a conversation counts once: as messages it is what the conversation begins with, a system
//! message aside, and as a string one of its questions. Of what is left, all that both begin with is the prompt's too.

use std::iter::zip;

use super::pair::Messages;
use crate::chat::message;

/// What a column holds of a pair.
pub(super) enum Part {
    Text(String),
    Messages(Messages),
}

/// Whether messages begin with a question, so that the answer is not all there is.
pub(super) fn is_whole(messages: &Messages) -> bool {
    let first = messages.iter().find(|it| it["role"] != "system");
    first.is_some_and(|it| it["role"] == "user")
}

/// The prompt of both answers, which are called `names`, and what each has after it. Error: what does not go together.
pub(super) fn part(
    prompt: Option<Part>,
    mut answers: [Messages; 2],
    names: [&str; 2],
) -> Result<(Messages, [Messages; 2]), String> {
    let whole = [0, 1].map(|i| is_whole(&answers[i]));
    let mut prompt = match prompt {
        Some(Part::Messages(prompt)) => beside_messages(prompt, &mut answers, names)?,
        Some(Part::Text(text)) => beside_text(&text, &mut answers, names)?,
        None => match whole.iter().position(|it| !it) {
            None => Vec::new(),
            Some(i) => return Err(format!("there is no question in `{}`", names[i])),
        },
    };
    if whole == [true, true] {
        // The last message of each is an answer, whatever it says.
        let [a, b] = &answers;
        let most = a.len().min(b.len()).saturating_sub(1);
        let common = zip(a, b).take(most).take_while(|(a, b)| is_same(a, b));
        let common = common.count();
        prompt.extend_from_slice(&answers[0][..common]);
        for answer in &mut answers {
            answer.drain(..common);
        }
    }
    Ok((prompt, answers))
}

/// Takes a prompt of messages off the conversations that begin with it.
fn beside_messages(
    mut prompt: Messages,
    answers: &mut [Messages; 2],
    names: [&str; 2],
) -> Result<Messages, String> {
    let mut system = take_system(&mut prompt);
    let are_whole = answers.iter().all(is_whole);
    for (answer, name) in zip(answers, names) {
        if !is_whole(answer) {
            continue;
        }
        let own = take_system(answer);
        match (&system, own) {
            (Some(system), Some(own)) if !is_alike(system, &own) => {
                return Err(format!("another system message in `{name}` than before"));
            }
            (None, own) => system = own,
            _ => {}
        }
        let begins = answer.len() > prompt.len()
            && zip(answer.iter(), &prompt).all(|(answer, prompt)| is_alike(answer, prompt));
        // A prompt that ends with an answer may be what was said before the conversations.
        let goes_on = are_whole
            && prompt.last().is_some_and(|it| it["role"] == "assistant")
            && !is_alike(&prompt[0], &answer[0]);
        if begins {
            answer.drain(..prompt.len());
        } else if !goes_on {
            return Err(another_question(name));
        }
    }
    Ok(system.into_iter().chain(prompt).collect())
}

/// Of one conversation with the bare answer to the same question, takes off what is up to that question. Of two, what is
/// before the answers is seen by what they have in common.
fn beside_text(
    text: &str,
    answers: &mut [Messages; 2],
    names: [&str; 2],
) -> Result<Messages, String> {
    let mut questions = [None; 2];
    for (i, answer) in answers.iter().enumerate().filter(|(_, it)| is_whole(it)) {
        let found = question(answer, text).ok_or_else(|| another_question(names[i]))?;
        questions[i] = Some(found);
    }
    Ok(match questions {
        [None, None] => vec![message("user", text)],
        [Some(_), Some(_)] => Vec::new(),
        [Some(at), None] => answers[0].drain(..=at).collect(),
        [None, Some(at)] => answers[1].drain(..=at).collect(),
    })
}

/// Where in a conversation the question `text` is: a message of the user, or the last of them if `text` holds them all. No text
/// asks nothing else.
fn question(conversation: &Messages, text: &str) -> Option<usize> {
    let asked = conversation.iter().enumerate();
    let asked = asked.filter(|(_, it)| it["role"] == "user");
    let asked: Vec<(usize, &str)> = asked
        .map(|(i, it)| (i, it["content"].as_str().unwrap_or_default().trim()))
        .collect();
    let is_asked = |(i, question): &(usize, &str)| (*question == text.trim()).then_some(*i);
    asked.iter().find_map(is_asked).or_else(|| {
        let holds_all = asked.iter().all(|(_, question)| text.contains(question));
        let (last, _) = asked.last()?;
        (holds_all || text.trim().is_empty()).then_some(*last)
    })
}

fn another_question(name: &str) -> String {
    format!(
        "the conversation in `{name}` asks another question than the prompt beside it; data.collator.kwargs.columns names the \
         right column, and data.dataset.kwargs.columns=[{name},..] reads the conversations alone"
    )
}

fn take_system(messages: &mut Messages) -> Option<Message> {
    let is_there = messages.first().is_some_and(|it| it["role"] == "system");
    is_there.then(|| messages.remove(0))
}

type Message = serde_json::Map<String, serde_json::Value>;

fn is_same(a: &Message, b: &Message) -> bool {
    let keys = ["role", "content", "tool_calls"];
    keys.iter().all(|key| a.get(*key) == b.get(*key))
}

/// The same but for blanks around.
fn is_alike(a: &Message, b: &Message) -> bool {
    let text = |it: &Message| it["content"].as_str().unwrap_or_default().trim().to_owned();
    let rest = ["role", "tool_calls"];
    rest.iter().all(|key| a.get(*key) == b.get(*key)) && text(a) == text(b)
}
