package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// schema is OpenAPI as the API server takes it.
type schema = map[string]any

// source is the types of a package, by name.
type source struct {
	types map[string]typeSource
}

type typeSource struct {
	expr ast.Expr
	doc  string
}

// parse reads the package in dir, its tests left out.
func parse(dir string) (*source, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no Go files in %s (run this in the module's root): %v", dir, err)
	}
	s := &source{types: map[string]typeSource{}}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		for _, d := range file.Decls {
			decl, ok := d.(*ast.GenDecl)
			if !ok || decl.Tok != token.TYPE {
				continue
			}
			for _, spec := range decl.Specs {
				t := spec.(*ast.TypeSpec)
				doc := decl.Doc.Text()
				if t.Doc != nil {
					doc = t.Doc.Text()
				}
				s.types[t.Name.Name] = typeSource{t.Type, doc}
			}
		}
	}
	return s, nil
}

// known are types of other packages.
func known(name string) schema {
	switch name {
	case "metav1.Time":
		return schema{"type": "string", "format": "date-time"}
	case "metav1.Condition":
		text := func(more schema) schema { more["type"] = "string"; return more }
		return schema{
			"type": "object", "required": []any{"type", "status", "lastTransitionTime", "reason", "message"},
			"properties": schema{
				"type": text(schema{"maxLength": 316}), "status": text(schema{"enum": []any{"True", "False", "Unknown"}}),
				"lastTransitionTime": text(schema{"format": "date-time"}),
				"reason":             text(schema{"minLength": 1, "maxLength": 1024}), "message": text(schema{"maxLength": 32768}),
				"observedGeneration": schema{"type": "integer", "format": "int64", "minimum": 0},
			},
		}
	}
	return nil
}

// of returns the schema of a type.
func (s *source) of(expr ast.Expr) (schema, error) {
	switch t := expr.(type) {
	case *ast.StarExpr:
		return s.of(t.X)
	case *ast.ArrayType:
		items, err := s.of(t.Elt)
		return schema{"type": "array", "items": items}, err
	case *ast.SelectorExpr:
		name := fmt.Sprintf("%v.%s", t.X, t.Sel.Name)
		if found := known(name); found != nil {
			return found, nil
		}
		return nil, fmt.Errorf("type %s is not known here", name)
	case *ast.Ident:
		switch t.Name {
		case "string":
			return schema{"type": "string"}, nil
		case "bool":
			return schema{"type": "boolean"}, nil
		case "int", "int32", "int64":
			return schema{"type": "integer"}, nil
		}
		named, ok := s.types[t.Name]
		if !ok {
			return nil, fmt.Errorf("type %s is not known here", t.Name)
		}
		return s.named(t.Name, named)
	}
	return nil, fmt.Errorf("no schema for %T", expr)
}

// named returns the schema of a type that has a name. One that comes in forms of
// its own has no fields with JSON names, and says it all in its comment.
func (s *source) named(name string, t typeSource) (out schema, err error) {
	description, extra, err := comment(t.doc)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if fields, ok := t.expr.(*ast.StructType); ok {
		out, err = s.fields(fields)
	} else {
		out, err = s.of(t.expr)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if out["type"] == "object" {
		out["description"] = description
	}
	merge(out, extra)
	return out, nil
}

func (s *source) fields(t *ast.StructType) (schema, error) {
	properties, required := schema{}, []any{}
	for _, f := range t.Fields.List {
		if f.Tag == nil {
			continue
		}
		tag, err := strconv.Unquote(f.Tag.Value)
		if err != nil {
			return nil, err
		}
		name, options, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
		if name == "" || name == "metadata" {
			continue
		}
		one, err := s.of(f.Type)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		description, extra, err := comment(f.Doc.Text())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if description != "" {
			one["description"] = description
		}
		merge(one, extra)
		properties[name] = one
		if !strings.Contains(options, "omitempty") {
			required = append(required, name)
		}
	}
	if len(properties) == 0 {
		return schema{}, nil
	}
	out := schema{"type": "object", "properties": properties}
	if len(required) > 0 {
		out["required"] = required
	}
	return out, nil
}

// comment splits a comment into what people read and what its "+schema" lines say.
func comment(doc string) (description string, extra schema, err error) {
	extra = schema{}
	var words []string
	for line := range strings.Lines(doc) {
		line = strings.TrimSpace(line)
		said, ok := strings.CutPrefix(line, "+schema ")
		if !ok {
			words = append(words, line)
			continue
		}
		var more schema
		if err := yaml.Unmarshal([]byte(said), &more); err != nil {
			return "", nil, fmt.Errorf("%s: %w", line, err)
		}
		merge(extra, more)
	}
	return strings.TrimSpace(strings.Join(words, " ")), extra, nil
}

// merge puts more into out, maps into maps.
func merge(out, more schema) {
	for key, value := range more {
		if inner, ok := value.(schema); ok {
			if have, ok := out[key].(schema); ok {
				merge(have, inner)
				continue
			}
			value = maps.Clone(inner)
		}
		out[key] = value
	}
}
