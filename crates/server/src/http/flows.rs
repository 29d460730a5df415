//! Definitions: register, look at, check, draw.

use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use flowline::EngineError;
use flowline::core::definition::{self, Diagnostic, Diagnostics, Format, Read, Severity, read};
use flowline::core::{Json as Raw, Plan, limits};
use flowline::registry;
use flowline::store::StoredDefinition;
use flowline_api::flows::{
    Activate, DefinitionJson, FlowChanged, FlowDefinition, FlowList, FlowView, Registered, Validated,
};
use flowline_api::problem::DiagnosticList;

use super::codes;
use super::etag::{UNCHANGED, tagged};
use super::problem::ApiError;
use super::request::{JsonBody, Params, Text, is_json};
use super::route::{Answer, Body, BodyLimit, Query, QueryKind, Route, RouteAccess, handler};
use super::visible::{ApiCaller, Visible};
use crate::view::{Versions, read_flows};

const DEFINITION: Body = Body {
    also: &["application/yaml", "application/toml"],
    ..Body::of::<DefinitionJson>(BodyLimit::Bytes(limits::DEFINITION_BYTES))
};
const VERSION: Query = Query::new("version", QueryKind::Text, "Hash of a version; the latest by default.");

pub const ROUTES: &[Route] = &[
    Route::post("/v1/flows", RouteAccess::OPERATE, "Register a definition", handler!(register))
        .about("Send JSON, YAML or TOML, with the matching Content-Type. A version is identified by the hash of its content. Registering one makes it the latest of its flow, even if it was registered before, and brings back a retired flow. `warnings` names steps that this server can't run. A token that's bound to flows or queues can only register definitions that stay within its bindings, and no `command` steps.")
        .body(DEFINITION)
        .answers(&[
            Answer::json::<Registered>(200, "It was registered before, and is now the latest."),
            Answer::json::<Registered>(201, "Registered, and now the latest."),
        ])
        .problems(&[&codes::DEFINITION, &codes::TOO_LARGE]),
    Route::post("/v1/flows/validate", RouteAccess::READ, "Check a definition without registering it", handler!(validate))
        .body(DEFINITION)
        .answers(&[Answer::json::<Validated>(200, "Whether it's valid, and what's wrong with it.")])
        .problems(&[&codes::TOO_LARGE]),
    Route::get("/v1/flows", RouteAccess::READ, "List flows with their latest version", handler!(list))
        .about("A retired flow has `retired` and shows its newest version. `notRunHere` names steps that this server can't run, and what to do about it.")
        .query(&[Query::new("versions", QueryKind::Flag, "List every version, not only the latest of each flow.")])
        .answers(&[Answer::json::<FlowList>(200, "Flows by name, with the number of runs by status.")]),
    Route::get("/v1/flows/{flow}", RouteAccess::READ, "Show a flow's definition", handler!(show))
        .query(&[VERSION])
        .answers(&[Answer::json::<FlowDefinition>(200, "The complete definition."), UNCHANGED])
        .problems(&[&codes::NO_SUCH_FLOW]),
    Route::post("/v1/flows/{flow}/activate", RouteAccess::OPERATE, "Choose the version that new runs use", handler!(activate))
        .about("New runs use this version, even if others were registered after it; existing runs keep theirs. Brings back a retired flow.")
        .body(Body::small::<Activate>())
        .answers(CHANGED)
        .problems(&[&codes::NO_SUCH_FLOW]),
    Route::post("/v1/flows/{flow}/retire", RouteAccess::OPERATE, "Retire a flow", handler!(retire))
        .about("No new runs start. Existing ones continue, and the versions are kept. To bring it back, register the flow again or activate a version.")
        .answers(CHANGED)
        .problems(&[&codes::NO_SUCH_FLOW]),
    Route::get("/v1/flows/{flow}/versions", RouteAccess::READ, "List all versions of a flow", handler!(versions))
        .answers(&[Answer::json::<FlowList>(200, "Versions, newest first.")])
        .problems(&[&codes::NO_SUCH_FLOW]),
    Route::get("/v1/flows/{flow}/graph", RouteAccess::READ, "Draw a flow", handler!(draw))
        .about("Returns nodes and edges as JSON, or text for Mermaid or Graphviz.")
        .query(&[
            VERSION,
            Query::new("format", QueryKind::OneOf(&["json", "mermaid", "dot"]), "Output format; `json` by default."),
        ])
        .answers(&[
            Answer::json::<definition::Graph>(200, "The graph."),
            Answer::other(200, "The graph as text.", "text/plain"),
        ])
        .problems(&[&codes::NO_SUCH_FLOW]),
];

const CHANGED: &[Answer] = &[Answer::json::<FlowChanged>(200, "")];

fn parse(body: &Text) -> Result<Result<Read, Diagnostics>, ApiError> {
    let (name, format) = match body.kind.as_str() {
        kind if is_json(kind) => ("definition.json", Format::Json),
        "application/yaml" | "application/x-yaml" | "text/yaml" => ("definition.yaml", Format::Yaml),
        "application/toml" | "text/toml" => ("definition.toml", Format::Toml),
        other => {
            let detail = format!(
                "{other:?} isn't supported here; send application/json, application/yaml or application/toml"
            );
            return Err(ApiError::new(&codes::UNSUPPORTED_MEDIA_TYPE, detail));
        }
    };
    Ok(read(name, &body.text, format))
}

async fn register(caller: ApiCaller, _: Params, body: Text) -> Result<Response, ApiError> {
    let (flow, plan, mut warnings) = caller
        .aside(move || {
            let Read { definition, warnings } =
                parse(&body)?.map_err(|wrong| EngineError::Definition(Box::new(wrong)))?;
            let flow = definition.flow.clone();
            Ok::<_, ApiError>((flow, Plan::build(definition).map_err(EngineError::from)?, warnings))
        })
        .await?;
    if let Some(act) = &caller.act {
        act.asks("flow", flow.as_str());
    }
    let flow = caller.flow(&flow)?;
    let engine = flow.engine();
    let known = engine.store().definition(engine.tenant(), &plan.hash).await?;
    engine.check_steps(&plan)?;
    let origin = known.as_ref().and_then(|known| known.origin.clone());
    let plan = engine.register_plan_by(plan.into(), origin, &caller.principal.binding).await?;
    let unserved = engine.unserved(&plan);
    warnings.items.extend(unserved.into_iter().map(|unserved| Diagnostic {
        severity: Severity::Warning,
        code: "not-run-here",
        message: unserved.to_string(),
        place: String::new(),
        span: None,
        help: Some(unserved.remedy),
    }));
    let status = if known.is_some() { StatusCode::OK } else { StatusCode::CREATED };
    let (flow, hash, created) = (plan.flow.clone(), plan.hash.clone(), known.is_none());
    let answer = Registered { flow, hash, created, warnings: diagnostics(&warnings) };
    Ok((status, Json(answer)).into_response())
}

fn diagnostics(found: &Diagnostics) -> DiagnosticList {
    DiagnosticList(found.to_json().into())
}

async fn validate(caller: ApiCaller, _: Params, body: Text) -> Result<Json<Validated>, ApiError> {
    Ok(Json(match caller.aside(move || parse(&body)).await? {
        Ok(Read { definition, warnings }) => {
            Validated { valid: true, flow: Some(definition.flow), diagnostics: diagnostics(&warnings) }
        }
        Err(wrong) => Validated { valid: false, flow: None, diagnostics: diagnostics(&wrong) },
    }))
}

async fn list(caller: ApiCaller, params: Params) -> Result<Json<FlowList>, ApiError> {
    let versions = if params.flag("versions") { Versions::All } else { Versions::Latest };
    let rows =
        caller.rows(async |engine| read_flows(engine.store(), engine.tenant(), versions).await).await?;
    let (engine, mut items) = (rows.engine().clone(), rows.into_inner());
    for item in items.iter_mut().filter(|item| item.definition.latest) {
        let plan = engine.plans().get(engine.store(), engine.tenant(), &item.definition.hash).await?;
        item.not_run_here = engine.unserved(&plan);
    }
    Ok(Json(FlowList { items }))
}

/// The definition that the path and `version` name.
async fn find(flow: &Visible<&str>, params: &Params) -> Result<StoredDefinition, ApiError> {
    let (store, tenant) = (flow.engine().store(), flow.engine().tenant());
    let found = match params.text("version") {
        Some(hash) => store.definition(tenant, hash).await?.filter(|found| &*found.flow == **flow),
        None => Some(registry::shown(store, tenant, flow).await?),
    };
    found.ok_or_else(|| ApiError::no_such_flow(flow))
}

async fn show(caller: ApiCaller, params: Params, headers: HeaderMap) -> Result<Response, ApiError> {
    let flow = caller.flow(params.path("flow"))?;
    let stored = find(&flow, &params).await?;
    let latest = flow.engine().store().latest(flow.engine().tenant(), &stored.flow).await?;
    let definition = Raw::parse(&stored.body)
        .map_err(|error| ApiError::new(&codes::STORE, format!("definition {}: {error}", stored.hash)))?;
    let (definition, retired) = (DefinitionJson(definition), latest.is_none());
    tagged(&headers, &FlowDefinition { stored, definition, retired })
}

async fn versions(caller: ApiCaller, params: Params) -> Result<Json<FlowList>, ApiError> {
    let flow = caller.flow(params.path("flow"))?;
    let definitions = registry::of_flow(flow.engine().store(), flow.engine().tenant(), &flow).await?;
    let version =
        |definition| FlowView { definition, kind: None, runs: None, retired: None, not_run_here: Vec::new() };
    Ok(Json(FlowList { items: definitions.into_iter().map(version).collect() }))
}

async fn activate(
    caller: ApiCaller,
    params: Params,
    JsonBody(given): JsonBody<Activate>,
) -> Result<Json<FlowChanged>, ApiError> {
    let flow = caller.flow(params.path("flow"))?;
    let latest = flow.engine().activate(&flow, &given.version).await?;
    Ok(Json(FlowChanged { flow: flow.to_string(), hash: Some(latest.hash), retired: false }))
}

async fn retire(caller: ApiCaller, params: Params) -> Result<Json<FlowChanged>, ApiError> {
    let flow = caller.flow(params.path("flow"))?;
    flow.engine().retire(&flow).await?;
    Ok(Json(FlowChanged { flow: flow.to_string(), hash: None, retired: true }))
}

async fn draw(caller: ApiCaller, params: Params) -> Result<Response, ApiError> {
    let flow = caller.flow(params.path("flow"))?;
    let (stored, engine) = (find(&flow, &params).await?, flow.engine());
    let plan = engine.plans().get(engine.store(), engine.tenant(), &stored.hash).await?;
    Ok(match params.text("format") {
        Some("mermaid") => definition::mermaid(&plan.definition).into_response(),
        Some("dot") => definition::dot(&plan.definition).into_response(),
        _ => Json(definition::graph(&plan.definition)).into_response(),
    })
}
