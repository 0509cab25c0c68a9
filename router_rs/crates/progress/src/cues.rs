//! Signs in texts of how far an agent is: plan items, errors, words of ending; hashed words of late and of all
//! that was said so far.

use std::fmt;
use std::sync::Arc;

use crate::bag::{Bag, Hash};
use crate::running::{RECENT, log};
use crate::text::{self, Words};

const PATTERNS: usize = text::NAMES.len();
const OBSERVED: usize = text::OBSERVED.len();

/// Before names of tools in what was said: a tool is not a word.
const TOOL: &[u8] = b"@";
const PROMPT: u8 = b'#';
const OUTPUT: u8 = b'>';
const OBSERVATION: u8 = b'<';

/// Matches in the last text, and a running mean over recent ones.
#[derive(Clone, Debug)]
struct Followed<const N: usize> {
    last: [f64; N],
    recent: [f64; N],
}

impl<const N: usize> Default for Followed<N> {
    fn default() -> Self {
        Self {
            last: [f64::NAN; N],
            recent: [f64::NAN; N],
        }
    }
}

impl<const N: usize> Followed<N> {
    fn follow(&mut self, patterns: [usize; N], text: Option<&str>) {
        let Some(text) = text else {
            self.last = [f64::NAN; N];
            return;
        };
        for (place, pattern) in patterns.into_iter().enumerate() {
            let found = text::matches(text, pattern) as f64;
            self.last[place] = found;
            let recent = &mut self.recent[place];
            *recent = if recent.is_nan() {
                found
            } else {
                *recent + RECENT * (found - *recent)
            };
        }
    }
}

/// A text of late: what is kept of it, and how long that is in characters.
#[derive(Clone, Debug)]
struct Kept {
    text: Arc<str>,
    characters: usize,
}

impl Kept {
    fn of(text: &str) -> Self {
        let text = Arc::<str>::from(text::cut_middle(text));
        let characters = text.chars().count();
        Self { text, characters }
    }
}

/// Running signs of one trajectory. All NaN where no text was seen.
#[derive(Clone, Debug)]
pub struct Cues {
    said_last: Followed<PATTERNS>,
    seen_last: Followed<OBSERVED>,
    text: Option<Kept>,
    observation: Option<Kept>,
    prompt: Option<Kept>,
    prompt_numbers: [f64; 4],
    prompt_words: Option<Box<Bag>>,
    words: Option<Box<Bag>>,
    said: Option<Box<Bag>>,
}

impl Cues {
    pub fn new(prompt: Option<&str>) -> Self {
        let mut cues = Self {
            said_last: Followed::default(),
            seen_last: Followed::default(),
            text: None,
            observation: None,
            prompt: None,
            prompt_numbers: [f64::NAN; 4],
            prompt_words: None,
            words: None,
            said: None,
        };
        if let Some(prompt) = prompt {
            let kept = Kept::of(prompt);
            put(&Words::of(&kept.text), PROMPT, &mut cues.prompt_words);
            cues.prompt = Some(kept);
            cues.prompt_numbers = [
                log(prompt.chars().count() as f64),
                text::items(prompt) as f64,
                prompt.matches("```").count() as f64,
                prompt.matches('?').count() as f64,
            ];
        }
        cues
    }

    /// A step's output and the tools that it calls, and what its predecessor's tool said.
    pub fn observe(&mut self, output: Option<&str>, observation: Option<&str>, tools: &[&str]) {
        self.text = output.map(Kept::of);
        self.observation = observation.map(Kept::of);
        self.words = None;
        for tool in tools {
            let name = Hash::EMPTY.then(TOOL).then(tool.as_bytes());
            self.said.get_or_insert_default().add(name);
        }
        if let Some(text) = &self.text {
            let words = Words::of(&text.text);
            put(&words, OUTPUT, &mut self.words);
            if !words.is_empty() {
                words.put(self.said.get_or_insert_default());
            }
        }
        if let Some(observation) = &self.observation {
            put(&Words::of(&observation.text), OBSERVATION, &mut self.words);
        }
        let every = std::array::from_fn(|place| place);
        self.said_last
            .follow(every, self.text.as_ref().map(|kept| &*kept.text));
        self.seen_last.follow(
            text::OBSERVED,
            self.observation.as_ref().map(|kept| &*kept.text),
        );
    }

    /// In the order of their `names`.
    pub fn numbers(&self, row: &mut Vec<f64>) {
        row.extend(self.said_last.last);
        row.extend(self.said_last.recent);
        row.extend(self.seen_last.last);
        row.extend(self.seen_last.recent);
        for kept in [&self.text, &self.observation] {
            let length = kept.as_ref().map(|kept| kept.characters as f64);
            row.push(length.map_or(f64::NAN, log));
        }
        row.extend(self.prompt_numbers);
    }

    /// Of the prompt, the last output and the last observation. None without words.
    pub fn words(&self) -> Option<Bag> {
        match (&self.prompt_words, &self.words) {
            (None, None) => None,
            (Some(bag), None) | (None, Some(bag)) => Some((**bag).clone()),
            (Some(prompt), Some(late)) => {
                let mut both = (**prompt).clone();
                both.join(late);
                Some(both)
            }
        }
    }

    /// All words written and all tools called so far. None before the first.
    pub fn said(&self) -> Option<Bag> {
        self.said.as_deref().cloned()
    }

    pub fn recent_text(&self) -> Option<RecentText> {
        let parts = |kept: &[&Option<Kept>]| -> Vec<Arc<str>> {
            let texts = kept.iter().filter_map(|kept| kept.as_ref());
            let texts = texts.filter(|kept| !kept.text.is_empty());
            texts.map(|kept| kept.text.clone()).collect()
        };
        let mut found = parts(&[&self.observation, &self.text]);
        if found.is_empty() {
            found = parts(&[&self.prompt]);
        }
        (!found.is_empty()).then_some(RecentText(found))
    }
}

/// Texts of one moment, joined when they are asked for: few models read.
#[derive(Clone, Debug)]
pub struct RecentText(Vec<Arc<str>>);

impl fmt::Display for RecentText {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, text) in self.0.iter().enumerate() {
            let line_end = if place > 0 { "\n" } else { "" };
            write!(to, "{line_end}{text}")?;
        }
        Ok(())
    }
}

fn put(words: &Words, mark: u8, bag: &mut Option<Box<Bag>>) {
    if !words.is_empty() {
        words.put_marked(mark, bag.get_or_insert_default());
    }
}
