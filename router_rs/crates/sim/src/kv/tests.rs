//! The pool by itself.

use super::*;

fn path(trajectory: u64) -> Path {
    Path {
        group: 0,
        shared: 100,
        trajectory,
    }
}

/// One request from admission to its end, `context` tokens of KV in all; returns what it found.
fn request(pool: &mut Pool, path: &Path, prompt: u64, context: u64) -> u64 {
    let mut hold = pool.open(path, prompt - 1);
    let found = hold.known;
    assert!(pool.grow(&mut hold, prompt));
    pool.publish(path, &mut hold, prompt);
    assert!(pool.grow(&mut hold, context));
    pool.close(path, hold, Some(context));
    assert_eq!(pool.audit(), Vec::<String>::new());
    found
}

#[test]
fn a_trajectory_finds_what_it_said_and_its_siblings_the_prompt() {
    let mut pool = Pool::new(1000);
    assert_eq!(request(&mut pool, &path(1), 100, 150), 0);
    assert_eq!(request(&mut pool, &path(1), 180, 200), 150);
    assert_eq!(request(&mut pool, &path(2), 120, 130), 100);
    assert_eq!((pool.free(), pool.obtainable()), (770, 1000));
}

#[test]
fn the_least_recently_used_goes_first_and_a_prompt_last() {
    let mut pool = Pool::new(300);
    request(&mut pool, &path(1), 100, 150);
    request(&mut pool, &path(2), 110, 160);
    request(&mut pool, &path(3), 110, 240);
    // 100 of the prompt, 50 and 60 before, 140 now: trajectory 1 had to go.
    assert_eq!((pool.evicted(), pool.free()), (50, 0));
    assert_eq!(pool.matched(&path(1), 150), 100);
    assert_eq!(pool.matched(&path(2), 160), 160);
}

#[test]
fn what_is_locked_is_not_evicted() {
    let mut pool = Pool::new(200);
    request(&mut pool, &path(1), 100, 150);
    let held = pool.open(&path(1), 150);
    let mut other = pool.open(
        &Path {
            group: 9,
            shared: 0,
            trajectory: 9,
        },
        100,
    );
    assert!(!pool.grow(&mut other, 51), "only 50 are free");
    assert!(pool.grow(&mut other, 50));
    pool.close(&path(1), held, None);
    assert!(pool.grow(&mut other, 120));
    assert_eq!(pool.audit(), Vec::<String>::new());
}

#[test]
fn a_duplicate_of_what_a_sibling_published_is_freed() {
    let mut pool = Pool::new(400);
    let (mut one, mut two) = (pool.open(&path(1), 99), pool.open(&path(2), 99));
    assert!(pool.grow(&mut one, 100) && pool.grow(&mut two, 100));
    assert_eq!(pool.free(), 200);
    pool.publish(&path(1), &mut one, 100);
    pool.publish(&path(2), &mut two, 100);
    assert_eq!(pool.free(), 300);
    pool.close(&path(1), one, None);
    pool.close(&path(2), two, None);
    assert_eq!((pool.obtainable(), pool.audit()), (400, vec![]));
}
