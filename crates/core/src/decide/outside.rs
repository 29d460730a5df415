//! What clients, operators and timers do to a run.

use super::attempt::clip;
use super::draft::Draft;
use super::{
    Finish, Halt, Inherited, OtherJobs, Refusal, Start, check_input_schema, check_input_within,
    check_payload, known_event,
};
use crate::definition::Priority;
use crate::event::{EventType, PayloadSlot};
use crate::expr::CelPayload;
use crate::json::{self, Json};
use crate::run::{Ended, Fact, Status};
use crate::time::format_duration;

impl Draft<'_> {
    pub(super) fn start(&mut self, start: &Start) -> Result<(), Halt> {
        if self.state.started {
            return Err(Halt::Applied);
        }
        let input = &start.input;
        match start.retry_of {
            None => check_input_within(self.plan, input, self.moment.limits, self.budget)?,
            // The store holds it already.
            Some(_) => check_input_schema(self.plan, input, self.budget)?,
        }
        if self.plan.machine.is_some() && start.standing.is_none() {
            // A delayed start must not be taken that could never begin.
            let opening = self.opening(&CelPayload::of(input.clone()));
            let begins = opening.and_then(|opening| match start.retry_of {
                None => self.sized(opening.context, None),
                Some(_) => Ok(opening.context),
            });
            begins.map_err(Refusal::from)?;
        }
        let priority = (start.priority != Priority::Normal).then(|| json::string(start.priority.as_str()));
        let at = start.at.filter(|at| *at > self.moment.now);
        let at_json = at.map(|at| json::string(&at.to_string()));
        let retry_of = start.retry_of.as_ref().map(|run| json::string(run.as_str()));
        let data = json::object([
            ("input", Some(input)),
            ("startAt", at_json.as_ref()),
            ("priority", priority.as_ref()),
            ("retryOf", retry_of.as_ref()),
        ]);
        self.keep(PayloadSlot::Input, input);
        let fact = Fact::Start { delayed: at.is_some(), priority: start.priority };
        self.push_run(fact, EventType::FlowStart, Some(data));
        let begin = at.unwrap_or(self.moment.now);
        if self.plan.machine.is_some() {
            if let Some(timeout) = self.plan.definition.timeout {
                self.time_out_at(begin + timeout);
            }
            if let Some(standing) = &start.standing {
                return self.stand(standing);
            }
            return match at {
                Some(at) => {
                    self.begin_at(at);
                    Ok(())
                }
                None => self.begin(),
            };
        }
        self.plan.entries.iter().for_each(|&step| self.enqueue(step, begin));
        if let Some(timeout) = self.plan.definition.timeout {
            self.time_out_at(begin + timeout);
        }
        self.inherit(start);
        self.settle()
    }

    /// What the run that this one repeats had finished and received holds here too.
    fn inherit(&mut self, start: &Start) {
        for inherited in &start.inherited {
            match inherited {
                Inherited::Emit { of, name, payload } => {
                    let of = of.as_ref().and_then(|(step, n)| Some((self.plan.step_index(step)?, *n)));
                    if let Some(event) = self.plan.event_index(name) {
                        self.publish(of, event, payload, None);
                    }
                }
                Inherited::Completed { step, attempt, result } => {
                    let (Some(step), attempt) = (self.plan.step_index(step), *attempt) else { continue };
                    self.keep(PayloadSlot::Result(step), result);
                    let yes = Json::from(true);
                    let data = json::object([("result", Some(result)), ("inherited", Some(&yes))]);
                    let fact = Fact::Completed { step, attempt };
                    self.push_step(fact, EventType::StepCompleted, (step, attempt), Some(data));
                    self.unqueue(step);
                }
            }
        }
    }

    pub(super) fn external(
        &mut self,
        name: &str,
        payload: &Json,
        event_id: Option<&str>,
    ) -> Result<(), Halt> {
        let event = known_event(self.plan, name)?;
        if self.state.emitted.contains(event) {
            return Err(Halt::Applied);
        }
        self.refuse_if_ended()?;
        check_payload(self.plan, event, name, payload, self.moment.limits, self.budget)?;
        self.publish(None, event, payload, event_id);
        self.settle()
    }

    pub(super) fn timed_out(&mut self) -> Result<(), Halt> {
        if self.state.ended.is_some() {
            return Err(Halt::Applied);
        }
        let timeout = self.plan.definition.timeout.unwrap_or_default();
        let error = format!("the run timed out after {}", format_duration(timeout));
        self.fail_run(&error, None);
        let code = json::string("timeout");
        self.end(Ended::Failed, &[("error", Some(&json::string(&error))), ("code", Some(&code))]);
        Ok(())
    }

    pub(super) fn cancel(&mut self, reason: Option<&str>) -> Result<(), Halt> {
        if self.state.status() == Status::Cancelled {
            return Err(Halt::Applied);
        }
        self.refuse_if_ended()?;
        self.end(Ended::Cancelled, &[("reason", reason.map(clip).map(json::string).as_ref())]);
        Ok(())
    }

    pub(super) fn pause(&mut self) -> Result<(), Halt> {
        self.refuse_if_ended()?;
        if self.state.paused {
            return Err(Halt::Applied);
        }
        self.push_run(Fact::Paused, EventType::FlowPaused, None);
        self.others = OtherJobs::Hold;
        Ok(())
    }

    pub(super) fn resume(&mut self) -> Result<(), Halt> {
        self.refuse_if_ended()?;
        if !self.state.paused {
            return Err(Halt::Applied);
        }
        self.push_run(Fact::Resumed, EventType::FlowResumed, None);
        self.others = OtherJobs::Release;
        // A machine has given no turn meanwhile.
        if self.plan.machine.is_some() { self.advance() } else { Ok(()) }
    }

    pub(super) fn revisit(&mut self) -> Result<(), Halt> {
        if self.state.ended.is_some() {
            return Err(Halt::Applied);
        }
        self.settle()
    }

    pub(super) fn finish_by_hand(&mut self, finish: &Finish) -> Result<(), Halt> {
        self.refuse_if_ended()?;
        let by = json::string("operator");
        match finish {
            Finish::Completed { result } => {
                result.clone().within("the result", self.moment.limits.payload()).map_err(Refusal::from)?;
                let steps = match &self.state.machine {
                    Some(machine) => machine.completed.into(),
                    None => self.plan.steps.len() as i64,
                };
                let steps = json::number(steps);
                let fields = [("result", Some(result)), ("stepCount", Some(&steps)), ("by", Some(&by))];
                self.end(Ended::Completed, &fields);
            }
            Finish::Failed { error } => {
                let error = clip(error);
                self.fail_run(error, None);
                self.end(Ended::Failed, &[("error", Some(&json::string(error))), ("by", Some(&by))]);
            }
        }
        Ok(())
    }
}
