//! Reading a text: what part of it is looked at, its words, and patterns that show how far an agent is.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::{Regex, RegexBuilder};

use crate::bag::{Bag, Hash};

/// Characters of a text that are looked at: its beginning and its end, in equal parts.
const MOST_TEXT: usize = 4_000;
/// Words of a text that are looked at: its last ones.
const MOST_WORDS: usize = 256;
/// Matches of a pattern in one text that are told apart.
const MOST_MATCHES: usize = 20;

/// Names of the patterns, in `Patterns`' order.
pub const NAMES: [&str; 8] = [
    "ending", "starting", "checking", "trouble", "retrying", "items", "question", "code",
];
/// Those that are looked for in observations.
pub const OBSERVED: [usize; 3] = [0, 3, 6];
const ITEMS: usize = 5;

/// A file separator and its like are white space as well: recordings hold terminals' output.
const PATTERNS: [&str; NAMES.len()] = [
    r"(?i)\b(final(ly)?|in summary|summary|complet(e|ed)|finished|all (tests|checks) pass|successfully|anything else|conclusion|submit|\bdone\b)",
    r"(?i)\b(let me start|first|begin|explor|look at|understand|investigat)",
    r"(?i)\b(verify|double[- ]check|re-?run|test|review|confirm|make sure)",
    r"(?i)(traceback|error|exception|failed|failure|not found|cannot|unable|permission denied|no such file)",
    r"(?i)\b(try again|instead|another approach|wait|hmm|actually|still|unfortunately)",
    r"(?m)^[\s\x1c-\x1f]*(?:[-*]|\d+[.)])[\s\x1c-\x1f]",
    r"\?[\s\x1c-\x1f]*(?:$|\n)",
    r"(?m)```|\bdef |\bclass |\bimport |[{};]$",
];

struct Patterns([Regex; NAMES.len()]);

impl Patterns {
    fn new(unicode: bool) -> Self {
        Self(PATTERNS.map(|pattern| {
            RegexBuilder::new(pattern)
                .unicode(unicode)
                .build()
                .expect("the patterns are constants")
        }))
    }
}

/// Of texts that are all ASCII, as most are: the bounds of words are found many times faster there.
static ASCII: LazyLock<Patterns> = LazyLock::new(|| Patterns::new(false));
static UNICODE: LazyLock<Patterns> = LazyLock::new(|| Patterns::new(true));
static DIGIT: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\d").expect("the pattern is a constant"));

fn patterns_for(text: &str) -> &'static [Regex; NAMES.len()] {
    if text.is_ascii() {
        &ASCII.0
    } else {
        &UNICODE.0
    }
}

/// How often a pattern is in a text, up to a bound.
pub fn matches(text: &str, pattern: usize) -> usize {
    let found = patterns_for(text)[pattern].find_iter(text);
    found.take(MOST_MATCHES).count()
}

/// List items in a text, all of them.
pub fn items(text: &str) -> usize {
    patterns_for(text)[ITEMS].find_iter(text).count()
}

/// The beginning and the end of a text that is longer than what is looked at.
pub fn cut_middle(text: &str) -> Cow<'_, str> {
    if text.len() <= MOST_TEXT {
        return text.into();
    }
    let part = MOST_TEXT / 2;
    let characters = text.char_indices();
    let Some((head, _)) = characters.clone().nth(part) else {
        return text.into();
    };
    let Some((tail, _)) = characters.rev().nth(part - 1) else {
        return text.into();
    };
    if tail <= head {
        // At most as many characters as are looked at.
        return text.into();
    }
    format!("{}\n{}", &text[..head], &text[tail..]).into()
}

/// The last words of a text, in order and in small letters; numbers are all alike.
pub struct Words {
    letters: Vec<u8>,
    /// Where each word lies in `letters`; numbers are empty.
    words: Vec<(usize, usize)>,
}

impl Words {
    /// Of runs of two letters or underscores at least, and of numbers.
    pub fn of(text: &str) -> Self {
        let letters = text.to_ascii_lowercase().into_bytes();
        let mut words = Vec::new();
        let mut at = 0;
        while let Some(&byte) = letters.get(at) {
            let start = at;
            if is_letter(byte) {
                at += letters[at..]
                    .iter()
                    .take_while(|byte| is_letter(**byte))
                    .count();
                if at - start > 1 {
                    words.push((start, at));
                }
            } else if let Some(after) = after_number(text, at) {
                at = after;
                words.push((start, start));
            } else {
                at += 1;
            }
        }
        words.drain(..words.len().saturating_sub(MOST_WORDS));
        Self { letters, words }
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.words.iter().map(|(start, end)| {
            if start == end {
                b"0"
            } else {
                &self.letters[*start..*end]
            }
        })
    }

    /// Puts each word into the bag.
    pub fn put(&self, bag: &mut Bag) {
        for word in self.iter() {
            bag.add(Hash::EMPTY.then(word));
        }
    }

    /// Puts each word and each pair of neighbours into the bag. `mark` keeps sources apart.
    pub fn put_marked(&self, mark: u8, bag: &mut Bag) {
        let mut before: Option<Hash> = None;
        for word in self.iter() {
            let hash = Hash::EMPTY.then(&[mark]).then(word);
            bag.add(hash);
            if let Some(before) = before {
                bag.add(before.then(b" ").then(word));
            }
            before = Some(hash);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }
}

fn is_letter(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_'
}

/// The end of the run of decimal digits, of any script, that starts at `start`; None where none does.
fn after_number(text: &str, start: usize) -> Option<usize> {
    // Inside of a character nothing starts; small letters of ASCII are as long as the large ones.
    let rest = text.get(start..)?;
    let end = rest.find(|character: char| !is_digit(character));
    let length = end.unwrap_or(rest.len());
    (length > 0).then_some(start + length)
}

fn is_digit(character: char) -> bool {
    character.is_ascii_digit()
        || (character.is_numeric() && DIGIT.is_match(character.encode_utf8(&mut [0; 4])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let found = Words::of(text);
        found
            .iter()
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect()
    }

    #[test]
    fn words_are_runs_of_letters_and_numbers_are_all_alike() {
        assert_eq!(
            words("Step 12 of a_b, x ÿes ٣٤5 ½ q9"),
            ["step", "0", "of", "a_b", "es", "0", "0"]
        );
        assert_eq!(words(&"ab ".repeat(300)).len(), MOST_WORDS);
        assert!(Words::of("a ½ é").is_empty());
    }

    #[test]
    fn a_long_text_loses_its_middle() {
        let short = "é".repeat(MOST_TEXT);
        assert_eq!(cut_middle(&short), short);
        let long = format!(
            "{}x{}",
            "é".repeat(MOST_TEXT / 2),
            "è".repeat(MOST_TEXT / 2)
        );
        let wanted = format!(
            "{}\n{}",
            "é".repeat(MOST_TEXT / 2),
            "è".repeat(MOST_TEXT / 2)
        );
        assert_eq!(cut_middle(&long), wanted);
    }

    #[test]
    fn ascii_and_other_texts_are_read_alike() {
        let text = "First, let me verify.\n- one\n 2) two\x1c\n* all tests pass, done; is it?\nclass A {\nhmm Error";
        let found = |text: &str| {
            (0..NAMES.len())
                .map(|one| matches(text, one))
                .collect::<Vec<_>>()
        };
        let ascii = found(text);
        assert_eq!(ascii, [2, 1, 2, 1, 1, 3, 1, 2]);
        assert_eq!(found(&format!("{text} é")), ascii);
        assert_eq!(matches(&"error ".repeat(500), 3), MOST_MATCHES);
        assert_eq!(items(&"- item\n".repeat(500)), 500);
    }
}
