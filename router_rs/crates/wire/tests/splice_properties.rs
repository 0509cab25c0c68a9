//! The splice changes what it is told to change, and nothing else, in any JSON.

mod json_strategies;

use heddle_wire::{Dialect, Edits, scan_body, splice};
use json_strategies::{members, write_object};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

const RID: &str = "0123456789abcdef0123456789abcdef";

/// What the edits mean, on parsed values: the specification.
fn edited(members: &[(String, Value)], edits: &Edits<'_>, dialect: Dialect) -> Map<String, Value> {
    let mut expected: Map<String, Value> = members.iter().cloned().collect();
    let streams = expected.get("stream") == Some(&Value::Bool(true));
    for name in edits.drop {
        expected.remove(*name);
    }
    if let Some(rid) = edits.rid {
        expected.insert(dialect.rid_member().into(), json!(rid));
    }
    if let Some(priority) = edits.priority {
        expected.insert("priority".into(), json!(priority));
    }
    if edits.ask_usage && streams && matches!(dialect, Dialect::Chat | Dialect::Completions) {
        let original = members
            .iter()
            .rev()
            .find(|(name, _)| name == "stream_options")
            .map(|(_, value)| value.clone());
        let options = match original {
            None | Some(Value::Null) => json!({"include_usage": true}),
            Some(Value::Object(mut options)) => {
                options.insert("include_usage".into(), json!(true));
                Value::Object(options)
            }
            Some(other) => other,
        };
        expected.insert("stream_options".into(), options);
    }
    expected
}

/// How many times each key stands at the top level.
fn occurrences(body: &str, name: &str) -> usize {
    struct Count<'n>(&'n str, usize);
    impl<'de> serde::de::Visitor<'de> for Count<'_> {
        type Value = usize;
        fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            formatter.write_str("an object")
        }
        fn visit_map<A: serde::de::MapAccess<'de>>(
            mut self,
            mut map: A,
        ) -> Result<usize, A::Error> {
            while let Some((key, _)) = map.next_entry::<String, serde::de::IgnoredAny>()? {
                self.1 += usize::from(key == self.0);
            }
            Ok(self.1)
        }
    }
    let mut reader = serde_json::Deserializer::from_str(body);
    serde::de::Deserializer::deserialize_map(&mut reader, Count(name, 0)).unwrap()
}

fn any_dialect() -> impl Strategy<Value = Dialect> {
    prop::sample::select(vec![Dialect::Chat, Dialect::Completions, Dialect::Generate])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_parsed_body_differs_by_the_edits_alone(
        mut members in members(),
        style in any::<u64>(),
        dialect in any_dialect(),
        stream in prop::option::of(any::<bool>()),
        rid in prop::option::of(Just(RID)),
        priority in prop::option::of(-40_i64..1000),
        ask_usage in any::<bool>(),
        drop in prop::collection::vec(prop::sample::select(vec!["tools", "metadata", "rid", "zz", "n"]), 0..3),
    ) {
        if let Some(stream) = stream {
            members.push(("stream".into(), Value::Bool(stream)));
        }
        let body = write_object(&members, style);
        let edits = Edits { rid, priority, ask_usage, drop: &drop };
        let scan = scan_body(body.as_bytes(), dialect).unwrap();
        let out = String::from_utf8(splice(body.as_bytes(), &scan, &edits).unwrap()).unwrap();
        let parsed: Map<String, Value> = serde_json::from_str(&out).unwrap();
        prop_assert_eq!(&parsed, &edited(&members, &edits, dialect), "{}", out);
        for (name, set) in [("rid", rid.is_some()), ("priority", priority.is_some())] {
            if set {
                prop_assert_eq!(occurrences(&out, name), 1, "{}", out);
            }
        }
        for name in &drop {
            if *name != "rid" || rid.is_none() {
                prop_assert_eq!(occurrences(&out, name), 0, "{}", out);
            }
        }
    }

    #[test]
    fn without_edits_every_byte_stays(members in members(), style in any::<u64>(), dialect in any_dialect()) {
        let body = write_object(&members, style);
        let scan = scan_body(body.as_bytes(), dialect).unwrap();
        let out = splice(body.as_bytes(), &scan, &Edits::default()).unwrap();
        prop_assert_eq!(out, body.as_bytes());
    }

    #[test]
    fn insertions_leave_the_rest_byte_for_byte(members in members(), style in any::<u64>()) {
        let members: Vec<_> = members.into_iter().filter(|(name, _)| name != "rid" && name != "priority").collect();
        let body = write_object(&members, style);
        let scan = scan_body(body.as_bytes(), Dialect::Chat).unwrap();
        let edits = Edits { rid: Some(RID), priority: Some(7), ..Edits::default() };
        let out = String::from_utf8(splice(body.as_bytes(), &scan, &edits).unwrap()).unwrap();
        let brace = body.find('{').unwrap() + 1;
        let comma = if members.is_empty() { "" } else { "," };
        let expected = format!("{}\"rid\":\"{RID}\",\"priority\":7{comma}{}", &body[..brace], &body[brace..]);
        prop_assert_eq!(out, expected);
    }
}

fn spliced(body: &str, edits: &Edits<'_>) -> String {
    let scan = scan_body(body.as_bytes(), Dialect::Chat).unwrap();
    String::from_utf8(splice(body.as_bytes(), &scan, edits).unwrap()).unwrap()
}

#[test]
fn a_clients_own_rid_and_priority_are_replaced_in_place() {
    let edits = Edits {
        rid: Some("new"),
        priority: Some(3),
        ..Edits::default()
    };
    assert_eq!(
        spliced(r#"{"a":1, "rid" : "old","priority": null }"#, &edits),
        r#"{"a":1, "rid" : "new","priority": 3 }"#
    );
}

#[test]
fn repeated_and_escaped_keys_are_one_key() {
    let edits = Edits {
        rid: Some("new"),
        ..Edits::default()
    };
    assert_eq!(
        spliced(r#"{"rid":1,"a":2,"r\u0069d":3}"#, &edits),
        r#"{"rid":"new","a":2}"#
    );
    assert_eq!(
        spliced(r#"{"r\u0069d":1,"rid":2}"#, &edits),
        r#"{"r\u0069d":"new"}"#
    );
}

#[test]
fn an_explicit_refusal_of_usage_is_overruled_and_other_stream_options_stay() {
    let edits = Edits {
        ask_usage: true,
        ..Edits::default()
    };
    assert_eq!(
        spliced(
            r#"{"stream":true,"stream_options":{ "continuous_usage_stats":true, "include_usage": false}}"#,
            &edits
        ),
        r#"{"stream":true,"stream_options":{ "continuous_usage_stats":true, "include_usage": true}}"#
    );
    assert_eq!(
        spliced(r#"{"stream":true,"stream_options":null}"#, &edits),
        r#"{"stream":true,"stream_options":{"include_usage":true}}"#
    );
    assert_eq!(
        spliced(r#"{"stream":true,"stream_options":{}}"#, &edits),
        r#"{"stream":true,"stream_options":{"include_usage":true}}"#
    );
}

#[test]
fn usage_is_not_asked_for_where_the_answer_is_not_streamed() {
    // vLLM refuses stream_options without stream.
    let edits = Edits {
        ask_usage: true,
        ..Edits::default()
    };
    assert_eq!(
        spliced(r#"{"stream":false}"#, &edits),
        r#"{"stream":false}"#
    );
}

#[test]
fn numbers_keep_their_spelling() {
    let edits = Edits {
        rid: Some("r"),
        drop: &["b"],
        ..Edits::default()
    };
    assert_eq!(
        spliced(
            r#"{"a":1.0,"b":2,"c":123456789012345678901234567890,"d":1e2,"e":NaN}"#,
            &edits
        ),
        r#"{"rid":"r","a":1.0,"c":123456789012345678901234567890,"d":1e2,"e":NaN}"#
    );
}

#[test]
fn a_scan_of_another_body_is_refused() {
    let scan = scan_body(b"{}", Dialect::Chat).unwrap();
    assert_eq!(splice(b"{} ", &scan, &Edits::default()), None);
}
