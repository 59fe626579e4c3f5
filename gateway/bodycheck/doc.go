// Package bodycheck decides which parts of a request's body may reach an engine.
//
// [ForRoute] returns the rules of a route and [ForPath] those of an engine's path. A body is read once: the caller calls
// [Check.See] for each top-level member and, when the model is known, [Check.Finish], which looks into the few members that
// hold content, schemas and grammars. Fields that no rule names are blanked, dangerous ones are refused. Content parts and
// media (gateway/media), schemas and grammars (gateway/constraint) are limited to what engines are known to survive: see
// infra/adr/0016-what-reaches-an-engine.md.
//
// Errors are [*api.Error] for the client. They quote nothing of the body except names of fields.
package bodycheck
