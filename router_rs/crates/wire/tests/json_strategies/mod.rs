//! Random JSON, written with random whitespace and escapes, for the property tests.

use std::fmt::Write;

use proptest::prelude::*;
use serde_json::{Map, Value};

/// Keys that the scan treats specially, and others.
pub fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::sample::select(vec![
            "rid", "request_id", "priority", "stream_options", "include_usage", "messages", "role", "content", "tool_calls",
            "model", "stream", "metadata", "session_id", "n", "tools", "text", "prompt", "input_ids", "usage", "input", "instructions", "system", "type", "output", "response", "delta",
        ])
        .prop_map(str::to_owned),
        1 => "[a-z]{0,3}",
        1 => any::<String>(),
    ]
}

/// Any JSON value, of limited depth.
pub fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::from),
        // Eighths: serde_json reads longer fractions back a last digit off.
        any::<i32>().prop_map(|number| Value::from(f64::from(number) / 8.0)),
        any::<String>().prop_map(Value::String),
        "[ -~\n\t]{0,40}".prop_map(Value::String),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::Array),
            prop::collection::vec((key(), inner), 0..5)
                .prop_map(|members| Value::Object(Map::from_iter(members))),
        ]
    })
}

/// Any JSON object whose members may repeat: pairs in order.
pub fn members() -> impl Strategy<Value = Vec<(String, Value)>> {
    prop::collection::vec((key(), value()), 0..10)
}

/// Writes members as an object; `style` chooses whitespace and escapes, digit by digit.
pub fn write_object(members: &[(String, Value)], style: u64) -> String {
    let mut writer = Writer {
        out: String::new(),
        style,
    };
    writer.object(members.iter().map(|(key, value)| (key.as_str(), value)));
    writer.out
}

struct Writer {
    out: String,
    style: u64,
}

impl Writer {
    fn choose(&mut self, options: u64) -> u64 {
        // Any mixing does: only variety matters.
        self.style = self
            .style
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.style >> 33) % options
    }

    fn space(&mut self) {
        let space = ["", "", " ", "\n", "\t", "\r\n "][self.choose(6) as usize];
        self.out.push_str(space);
    }

    fn object<'v>(&mut self, members: impl Iterator<Item = (&'v str, &'v Value)>) {
        self.space();
        self.out.push('{');
        for (position, (key, value)) in members.enumerate() {
            if position > 0 {
                self.space();
                self.out.push(',');
            }
            self.space();
            self.string(key);
            self.space();
            self.out.push(':');
            self.value(value);
        }
        self.space();
        self.out.push('}');
        self.space();
    }

    fn value(&mut self, value: &Value) {
        self.space();
        match value {
            Value::Object(members) => {
                self.object(members.iter().map(|(key, value)| (key.as_str(), value)));
            }
            Value::Array(elements) => {
                self.out.push('[');
                for (position, element) in elements.iter().enumerate() {
                    if position > 0 {
                        self.out.push(',');
                    }
                    self.value(element);
                }
                self.space();
                self.out.push(']');
            }
            Value::String(text) => self.string(text),
            other => self.out.push_str(&other.to_string()),
        }
        self.space();
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for character in text.chars() {
            let must = matches!(character, '"' | '\\') || character < ' ';
            if must || self.choose(8) == 0 {
                let mut units = [0; 2];
                for unit in character.encode_utf16(&mut units) {
                    let _ = write!(self.out, "\\u{unit:04x}");
                }
            } else {
                self.out.push(character);
            }
        }
        self.out.push('"');
    }
}
