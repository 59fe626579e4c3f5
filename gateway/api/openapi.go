package api

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"reveille/infra/jsonscan"
)

// doc is a JSON object of the document.
type doc = map[string]any

// Answers are the JSON schemas of routes' answers with status 200, by the name of the route. A route that is absent may
// answer with any JSON.
type Answers map[string]any

// OpenAPI returns an OpenAPI 3.1 document of the route table.
func OpenAPI(version string, answers Answers) []byte {
	paths, used := doc{}, map[string]int{}
	for i := range routes {
		r := &routes[i]
		for _, path := range r.places() {
			if paths[path] == nil {
				paths[path] = doc{}
			}
			item := paths[path].(doc)
			methods := []string{r.Method}
			if r.Method == anyMethod {
				methods = []string{"GET", "POST", "PUT", "PATCH", "DELETE"}
			}
			for _, method := range methods {
				id := r.Name
				if used[r.Name]++; used[r.Name] > 1 {
					id = fmt.Sprintf("%s_%d", r.Name, used[r.Name])
				}
				item[strings.ToLower(method)] = r.operation(id, answers)
			}
		}
	}
	responses, schemas := doc{}, doc{}
	for d := range dialectNames {
		d := Dialect(d)
		schemas[d.String()+"_error"] = d.errorSchema()
		for _, class := range errorClasses {
			responses[d.String()+"_"+class] = d.errorResponse(class)
		}
	}
	return encode(doc{
		"openapi": "3.1.0",
		"info": doc{
			"title": "Reveille", "version": version,
			"description": "Paths that begin with /v1 are served under /v0, /api/v1 and /api/v0 too, and those that take GET also take HEAD. " +
				"A gateway without API keys asks only for its admin key, on routes that could run programs or read files. " +
				"Members of bodies that are not described here are passed on to the engine.",
		},
		"paths": paths,
		"components": doc{
			"schemas": schemas, "responses": responses, "parameters": headerParameters,
			"securitySchemes": doc{
				"bearer": doc{"type": "http", "scheme": "bearer"},
				"basic":  doc{"type": "http", "scheme": "basic", "description": "The password is the key."},
				"header": doc{"type": "apiKey", "in": "header", "name": "x-api-key"},
			},
		},
	})
}

// places returns the route's paths, of the prefixes only /v1.
func (r *Route) places() (paths []string) {
	if r.Mount&Prefixed != 0 {
		paths = append(paths, "/v1"+r.Path)
	}
	if r.Mount&Bare != 0 {
		paths = append(paths, r.Path)
	}
	return paths
}

func (r *Route) operation(id string, answers Answers) doc {
	op := doc{
		"operationId": id, "tags": []string{r.Dialect.String()}, "security": r.security(), "responses": r.responses(answers),
	}
	if p := r.parameters(); len(p) > 0 {
		op["parameters"] = p
	}
	if body := r.requestBody(); body != nil {
		op["requestBody"] = body
	}
	return op
}

// security names the scopes that a key needs.
func (r *Route) security() []doc {
	scopes := []string{}
	switch r.Scope {
	case ScopeFree:
		return []doc{}
	case ScopeInfer:
		scopes = append(scopes, "infer")
	case ScopeManage, ScopeAdmin:
		scopes = append(scopes, "manage")
		if r.Inference {
			scopes = append(scopes, "infer")
		}
	}
	return []doc{{"bearer": scopes}, {"header": scopes}, {"basic": scopes}}
}

// headerParameters are the headers of requests that run a model.
var headerParameters = doc{
	HeaderColdWait:    headerParameter(HeaderColdWait, "What to do while the model is not loaded.", doc{"enum": []string{"block", "fail", "fallback"}}),
	HeaderWaitTimeout: headerParameter(HeaderWaitTimeout, "Longest wait for a model that is not loaded, in seconds.", doc{"type": "number", "exclusiveMinimum": 0}),
	"x-priority":      headerParameter("x-priority", "Order in the embedding queue; high needs a key that may use it.", doc{"enum": []string{"high", "normal", "low"}}),
}

func headerParameter(name, description string, schema doc) doc {
	return doc{"name": name, "in": "header", "description": description, "schema": schema}
}

// queries are the parameters in the query of routes that have some, with spaces between, besides [Route.InQuery].
var queries = map[string]string{
	"models": "show_all", "load": "wait", "tei_info": "model", "props": "model", "slots": "model", "realtime": "model", "logs": "source",
	"logs_stream": "no-history source", "logs_stream_model": "no-history",
}

func (r *Route) parameters() (list []doc) {
	if strings.Contains(r.Path, "{id}") {
		list = append(list, doc{
			"name": "id", "in": "path", "required": true, "schema": doc{"type": "string", "minLength": 1},
			"description": "May have slashes, as they are or percent-encoded.",
		})
	}
	query := queries[r.Name]
	if r.InQuery {
		query = r.Model.Name
	}
	for name := range strings.FieldsSeq(query) {
		list = append(list, doc{"name": name, "in": "query", "schema": doc{"type": "string"}})
	}
	if r.Inference {
		for _, name := range slices.Sorted(maps.Keys(headerParameters)) {
			list = append(list, doc{"$ref": "#/components/parameters/" + name})
		}
	}
	return list
}

func (r *Route) requestBody() doc {
	switch r.Body {
	case BodyJSON, BodyOptional:
		return doc{"required": r.Body == BodyJSON, "content": content("application/json", r.bodySchema(false))}
	case BodyForm:
		return doc{"required": true, "content": content("multipart/form-data", r.bodySchema(true))}
	case BodyRaw:
		return doc{"content": content("*/*", nil)}
	}
	return nil
}

func content(media string, schema any) doc {
	if schema == nil {
		return doc{media: doc{}}
	}
	return doc{media: doc{"schema": schema}}
}

// bodySchema describes the members that the gateway reads; of a form, its parts.
func (r *Route) bodySchema(form bool) doc {
	properties, required, either := doc{}, []string{}, []doc{}
	for _, name := range []string{r.Model.Name, r.Model.Alt} {
		if name != "" && form {
			properties[name] = doc{"type": "string"}
		} else if name != "" {
			properties[name] = doc{"type": []string{"string", "null"}}
		}
	}
	if r.CanStream || r.Streams || r.Name == "pull" {
		properties["stream"] = doc{"type": []string{"boolean", "null"}, "default": r.Streams}
	}
	for _, f := range r.Fields {
		schema := f.schema(form)
		properties[f.Name] = schema
		switch {
		case f.Alt != "":
			properties[f.Alt] = schema
			if f.Needed {
				either = append(either, doc{"required": []string{f.Name}}, doc{"required": []string{f.Alt}})
			}
		case f.Needed:
			required = append(required, f.Name)
		}
	}
	schema := doc{"type": "object", "properties": properties}
	if len(required) > 0 {
		schema["required"] = required
	}
	if len(either) > 0 {
		schema["anyOf"] = either
	}
	return schema
}

func (f *Field) schema(form bool) doc {
	switch {
	case f.Refused:
		return doc{"type": "null", "description": "Not supported."}
	case form && f.Name == "prompt":
		return doc{"type": "string", "minLength": 1}
	case form:
		return doc{"type": "string", "contentMediaType": "application/octet-stream", "minLength": 1}
	}
	types := []string{}
	schema := doc{}
	for k := jsonscan.Null; k <= jsonscan.Object; k++ {
		if f.Types.Has(k) {
			types = append(types, jsonTypes[k])
		}
	}
	if f.Needed && f.Types.Has(jsonscan.String) {
		schema["minLength"] = 1
	}
	if f.Needed && f.Types.Has(jsonscan.Array) {
		schema["minItems"] = 1
	}
	if f.Max > 0 && f.Types == list { // a text's alternative may be a list of any number of tokens
		schema["maxItems"] = f.Max
	}
	if f.Min1 {
		schema["minimum"] = 1
	}
	if !f.Needed {
		types = append(types, "null")
	}
	schema["type"] = types
	return schema
}

var jsonTypes = map[jsonscan.Kind]string{
	jsonscan.Null: "null", jsonscan.Bool: "boolean", jsonscan.Number: "number", jsonscan.String: "string", jsonscan.Array: "array", jsonscan.Object: "object",
}

// media are the types of the answers of routes that do not answer with JSON, or not only. "*/*" is what the engine says.
var media = map[string][]string{
	"ui": {"text/html"}, "ui_file": {"text/html", "text/css", "text/javascript", "image/svg+xml"}, "ui_stream": {"text/event-stream"},
	"root": {"text/plain"}, "metrics": {"text/plain"}, "logs": {"text/plain"}, "logs_stream": {"text/plain"}, "logs_stream_model": {"text/plain"}, "unload_all": {"text/plain"},
	"upstream": {"*/*"}, "speech": {"*/*"}, "transcriptions": {"*/*"}, "translations": {"*/*"}, "pull": {"application/json", "text/event-stream"},
	"ollama_pull": {"application/json", "application/x-ndjson"},
}

func (r *Route) responses(answers Answers) doc {
	all := doc{}
	for _, class := range errorClasses {
		all[class] = doc{"$ref": "#/components/responses/" + r.Dialect.String() + "_" + class}
	}
	if r.Unserved != "" {
		return all
	}
	types := media[r.Name]
	if types == nil {
		types = []string{"application/json"}
		if r.CanStream && r.Dialect == Ollama {
			types = append(types, "application/x-ndjson")
		} else if r.CanStream {
			types = append(types, "text/event-stream")
		}
	}
	ok := doc{"description": "Done.", "content": doc{}}
	for _, name := range types {
		if name == "application/json" {
			maps.Copy(ok["content"].(doc), content(name, answers[r.Name]))
		} else {
			maps.Copy(ok["content"].(doc), content(name, nil))
		}
	}
	all["200"] = ok
	switch r.Name {
	case "root":
		all["302"] = doc{"description": "The way to the page, for a client that accepts text/html."}
	case "load":
		all["202"] = doc{"description": "The load is queued.", "content": content("application/json", answers[r.Name])}
	case "ready":
		all["503"] = doc{"description": "Not ready.", "content": content("application/json", answers[r.Name])}
	case "upstream":
		all["2XX"], all["3XX"] = doc{"description": "What the engine answers."}, doc{"description": "What the engine answers, or the way to the path with a slash."}
		all["4XX"], all["5XX"] = all["2XX"], all["2XX"]
		delete(all, "200")
	}
	return all
}

var errorClasses = [...]string{"4XX", "5XX"}

// errorResponse describes the error table's rows of one class.
func (d Dialect) errorResponse(class string) doc {
	var rows []string
	for _, k := range Kinds() {
		if text := fmt.Sprintf("%d %s", d.Status(New(k, "")), k.Code()); text[0] == class[0] && !slices.Contains(rows, text) {
			rows = append(rows, text)
		}
	}
	return doc{
		"description": strings.Join(rows, ", "),
		"content":     content("application/json", doc{"$ref": "#/components/schemas/" + d.String() + "_error"}),
	}
}

// errorSchema describes what [Dialect.Body] returns.
func (d Dialect) errorSchema() doc {
	text := doc{"type": "string"}
	switch d {
	case Anthropic:
		return object(doc{"type": doc{"const": "error"}, "error": object(doc{"type": text, "message": text}), "request_id": text})
	case Ollama:
		return object(doc{"error": text})
	}
	var codes, types []string
	for _, k := range Kinds() {
		if !slices.Contains(codes, k.Code()) {
			codes = append(codes, k.Code())
		}
		if typ := New(k, "").Type; !slices.Contains(types, typ) {
			types = append(types, typ)
		}
	}
	orNull := []string{"string", "null"}
	members := doc{
		"error": object(doc{
			"message": text, "type": doc{"enum": types}, "param": doc{"type": orNull},
			"code": doc{"type": orNull, "examples": codes, "description": "One of the examples, or with a status from 400 to 499 an engine's own."},
		}),
	}
	if d == Lemonade {
		members["status"], members["message"] = doc{"const": "error"}, text
	}
	return object(members)
}

// object is the schema of an object that always has these members.
func object(members doc) doc {
	return doc{"type": "object", "properties": members, "required": slices.Sorted(maps.Keys(members))}
}
