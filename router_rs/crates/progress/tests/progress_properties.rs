//! Whatever a trajectory does: a row is whole and finite or unknown, and says what a plain count of all steps
//! says.

use heddle_progress::{BUCKETS, Progress, Sibling, Siblings, Step, names};
use proptest::prelude::*;

#[derive(Clone, Debug)]
struct Happened {
    output: i64,
    input: i64,
    tools: Vec<&'static str>,
    seconds: Option<f64>,
    gap: Option<f64>,
    error: Option<bool>,
    observation: Option<String>,
    text: Option<String>,
    compacted: bool,
}

fn tokens() -> impl Strategy<Value = i64> {
    prop_oneof![0..5_000_i64, Just(0), Just(-7), Just(i64::MAX)]
}

fn seconds() -> impl Strategy<Value = Option<f64>> {
    prop::option::of(prop_oneof![0.0..100.0, Just(0.0), Just(-1.0), Just(1e9)])
}

fn text() -> impl Strategy<Value = Option<String>> {
    prop::option::of(prop_oneof![
        9 => "(first|verify|error|done|wait|- one|\\?|\n| |[0-9]|\\PC){0,40}",
        1 => Just("word ".repeat(1_000)),
    ])
}

fn steps() -> impl Strategy<Value = Vec<Happened>> {
    let tools = prop::collection::vec(
        prop::sample::select(vec!["bash", "ask_user", "Grep", ""]),
        0..3,
    );
    let step = (
        (tokens(), tokens(), tools),
        (seconds(), seconds(), prop::option::of(any::<bool>())),
        (text(), text(), prop::bool::weighted(0.1)),
    );
    let step = step.prop_map(
        |((output, input, tools), (seconds, gap, error), (observation, text, compacted))| {
            Happened {
                output,
                input,
                tools,
                seconds,
                gap,
                error,
                observation,
                text,
                compacted,
            }
        },
    );
    prop::collection::vec(step, 0..12)
}

fn after(steps: &[Happened]) -> Progress {
    let mut progress = Progress::new(100, Some("Do this:\n- first\n- then?"));
    for step in steps {
        progress.observe(&Step {
            output_tokens: step.output,
            input_tokens: step.input,
            tools: &step.tools,
            seconds: step.seconds,
            gap_before_s: step.gap,
            error_before: step.error,
            observation: step.observation.as_deref(),
            text: step.text.as_deref(),
            compacted: step.compacted,
        });
    }
    progress
}

fn row(progress: &Progress, siblings: &Siblings) -> Vec<f64> {
    let mut row = Vec::new();
    progress.numbers(siblings, &mut row);
    row
}

fn none() -> Siblings {
    Siblings::new(Vec::new())
}

fn value(row: &[f64], name: &str) -> f64 {
    row[names().iter().position(|one| one == name).unwrap()]
}

/// Numbers of a plain count agree but for rounding; both may be unknown.
fn same(found: f64, wanted: f64) -> bool {
    found.is_nan() && wanted.is_nan() || (found - wanted).abs() <= 1e-9 * wanted.abs().max(1.0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_row_is_whole_and_never_infinite(
        steps in steps(),
        siblings in prop::collection::vec((tokens(), tokens()), 0..5),
    ) {
        let siblings = siblings.into_iter();
        let siblings = siblings.map(|(output_tokens, steps)| Sibling { output_tokens, steps });
        let row = row(&after(&steps), &Siblings::new(siblings.collect()));
        prop_assert_eq!(row.len(), names().len());
        prop_assert!(row.iter().all(|value| !value.is_infinite()));
    }

    #[test]
    fn figures_are_those_of_all_steps(steps in steps()) {
        let progress = after(&steps);
        let row = row(&progress, &none());
        let count = steps.len() as f64;
        let outputs: Vec<f64> = steps.iter().map(|step| step.output.max(0) as f64).collect();
        let total: f64 = outputs.iter().sum();
        prop_assert_eq!(usize::try_from(progress.steps()), Ok(steps.len()));
        prop_assert!(same(value(&row, "log_mean_output"), (total / count).ln_1p()));
        let largest = outputs.iter().copied().fold(f64::NAN, f64::max);
        prop_assert!(same(value(&row, "log_max_output"), largest.ln_1p()));
        let gaps = steps.iter().skip(1).filter_map(|step| step.gap);
        let gaps: Vec<f64> = gaps.map(|gap| gap.max(0.0)).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        prop_assert!(same(value(&row, "log_mean_gap"), mean.ln_1p()));
        let errors: Vec<bool> = steps.iter().filter_map(|step| step.error).collect();
        let failed = errors.iter().filter(|failed| **failed).count() as f64;
        prop_assert!(same(value(&row, "error_share"), failed / errors.len() as f64));
        let asked = |step: &Happened| step.tools.contains(&"ask_user");
        let asking = steps.iter().filter(|step| asked(step)).count() as f64;
        prop_assert!(same(value(&row, "share_person"), asking / count));
        let parts = steps.iter().filter(|step| asked(step) || step.tools.is_empty()).count();
        prop_assert!(same(value(&row, "parts"), parts as f64));
        let since = steps.iter().rev().position(asked);
        prop_assert!(same(value(&row, "since_person"), since.map_or(f64::NAN, |at| at as f64)));
    }

    #[test]
    fn a_bag_weighs_what_its_buckets_do(steps in steps()) {
        let weights: Vec<f64> = (0..BUCKETS).map(|bucket| (bucket as f64).sin()).collect();
        let weights: [f64; BUCKETS] = weights.try_into().unwrap();
        let progress = after(&steps);
        for bag in [progress.words(), progress.said()].into_iter().flatten() {
            let buckets = bag.buckets();
            prop_assert!(!bag.is_empty());
            prop_assert_eq!(buckets.len(), bag.len());
            prop_assert!(buckets.is_sorted_by(|one, next| one < next));
            let sum: f64 = buckets.iter().map(|bucket| weights[usize::from(*bucket)]).sum();
            prop_assert!(same(bag.weigh(&weights), sum / (bag.len() as f64).sqrt()));
        }
    }
}

#[test]
fn what_is_kept_does_not_grow_with_steps() {
    let mut progress = Progress::new(0, None);
    for number in 0..500 {
        let tool = format!("tool-{number}");
        progress.observe(&Step {
            tools: &[&tool],
            text: Some(&"word ".repeat(5_000)),
            ..Step::default()
        });
    }
    assert!(progress.recent_text().unwrap().to_string().len() < 10_000);
    assert!(value(&row(&progress, &none()), "tools") <= 64.0);
}

#[test]
fn words_are_told_apart_by_who_said_them_and_numbers_are_not() {
    let words = |prompt: Option<&str>, text: Option<&str>, observation: Option<&str>| {
        let mut progress = Progress::new(0, prompt);
        progress.observe(&Step {
            text,
            observation,
            ..Step::default()
        });
        progress.words().unwrap().buckets()
    };
    let plan = Some("step 12 of the plan");
    assert_eq!(
        words(plan, None, None),
        words(Some("Step 7 of the plan"), None, None)
    );
    assert_ne!(words(plan, None, None), words(None, plan, None));
    assert_ne!(words(None, plan, None), words(None, None, plan));
    assert_ne!(
        words(plan, None, None),
        words(Some("the plan of step 12"), None, None)
    );
    let both = words(plan, None, Some("error"));
    assert!(words(plan, None, None).iter().all(|one| both.contains(one)));
}
