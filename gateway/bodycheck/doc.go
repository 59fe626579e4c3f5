// Package bodycheck decides what of a request's body may reach an engine.
//
// [ForRoute] gives the rules of a route and [ForPath] those of an engine's
// path. A body is read once: for each top-level member the caller calls
// [Check.See], and when the model is known [Check.Finish], which looks into the
// few members that hold content, schemas and grammars. Fields that no rule
// names are taken out, dangerous ones are refused. Content parts, media,
// schemas and grammars are held to what engines are known to survive: see
// infra/adr/0016-what-a-body-may-hold.md.
//
// Errors are [*api.Error] for the client and hold nothing of the body but
// names of fields.
package bodycheck
