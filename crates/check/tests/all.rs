//! The checker on what is right and on what is damaged: `cargo test -p flowline-check --test all damage::`.

mod damage;
mod machine;
mod scene;
mod stage;
mod told;
mod watch;
