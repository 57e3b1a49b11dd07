// Writes the fields of a PodTemplateSpec, from the published OpenAPI document of each minor version of Kubernetes.
//
//	cd tests/pod-schema && go run . > ../../crates/core/src/api/pod_schema/fields.txt
//
// The documents come from the Go module k8s.io/kubernetes, some 40 MB a version: with GOMODCACHE=$(mktemp -d) they can be
// deleted afterwards. A new minor version is a new entry of `versions`.
package main

import (
	"archive/zip"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os/exec"
	"regexp"
	"sort"
	"strings"
)

// The last published patch of each minor version that the project serves, the oldest first.
var versions = []string{
	"1.12.10", "1.13.5", "1.14.10", "1.15.12", "1.16.15", "1.17.17", "1.18.20", "1.19.16", "1.20.15", "1.21.14",
	"1.22.17", "1.23.17", "1.24.17", "1.25.16", "1.26.15", "1.27.16", "1.28.15", "1.29.14", "1.30.14", "1.31.14",
	"1.32.13", "1.33.13", "1.34.2", "1.35.4", "1.36.3", "1.37.2",
}

const root = "io.k8s.api.core.v1.PodTemplateSpec"

// What a reference to a definition without properties means.
var scalars = map[string]string{
	"io.k8s.apimachinery.pkg.api.resource.Quantity":      "quantity",
	"io.k8s.apimachinery.pkg.util.intstr.IntOrString":    "intorstring",
	"io.k8s.apimachinery.pkg.apis.meta.v1.Time":          "time",
	"io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1":      "object",
	"io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1.json": "object",
}

type property struct {
	Ref                  string    `json:"$ref"`
	Type                 string    `json:"type"`
	Format               string    `json:"format"`
	Items                *property `json:"items"`
	AdditionalProperties *property `json:"additionalProperties"`
}

type definition struct {
	Properties map[string]property `json:"properties"`
	Required   []string            `json:"required"`
}

// A field over all versions.
type field struct {
	of          string
	required    bool
	first, last int
	// The first version that says which values it may have, and the first of each value.
	choicesSince int
	choices      map[string]int
}

func main() {
	log.SetFlags(0)
	all := map[string]map[string]*field{}
	for minor := range versions {
		read(minor, all)
	}
	inherit(all)
	print(all)
}

// The minor version of the document that has this index.
func minorOf(index int) int {
	var minor, patch int
	if _, err := fmt.Sscanf(versions[index], "1.%d.%d", &minor, &patch); err != nil {
		log.Fatalf("%s: %v", versions[index], err)
	}
	return minor
}

func read(index int, all map[string]map[string]*field) {
	files := download(versions[index], "api/openapi-spec/swagger.json", "pkg/generated/openapi/zz_generated.openapi.go")
	var document struct {
		Definitions map[string]definition `json:"definitions"`
	}
	if err := json.Unmarshal(files[0], &document); err != nil {
		log.Fatalf("%s: %v", versions[index], err)
	}
	choices := choicesIn(string(files[1]))
	seen := map[string]bool{}
	for wanted := []string{root}; len(wanted) > 0; {
		name := wanted[len(wanted)-1]
		wanted = wanted[:len(wanted)-1]
		if seen[name] || scalars[name] != "" {
			continue
		}
		seen[name] = true
		short := name[strings.LastIndex(name, ".")+1:]
		fields := all[short]
		if fields == nil {
			fields = map[string]*field{}
			all[short] = fields
		}
		for key, property := range document.Definitions[name].Properties {
			of, refers := typeOf(property)
			wanted = append(wanted, refers...)
			found := fields[key]
			if found == nil {
				found = &field{first: index, choices: map[string]int{}}
				fields[key] = found
			}
			found.of, found.last = of, index
			found.required = contains(document.Definitions[name].Required, key)
			for _, value := range choices[short+"."+key] {
				if len(found.choices) == 0 || found.choicesSince == index {
					found.choicesSince = index
				}
				if _, known := found.choices[value]; !known {
					found.choices[value] = index
				}
			}
		}
	}
}

// Lets the fields of a definition that got another name be as old as those that refer to it: LifecycleHandler, which was
// Handler before 1.23.
func inherit(all map[string]map[string]*field) {
	for name, fields := range all {
		since := len(versions)
		for _, found := range fields {
			since = min(since, found.first)
		}
		oldest := since
		for _, others := range all {
			for _, other := range others {
				if strings.TrimLeft(other.of, "[]{}") == name {
					oldest = min(oldest, other.first)
				}
			}
		}
		for _, found := range fields {
			if found.first == since {
				found.first = oldest
			}
		}
	}
}

// The files of a version's module; empty where it lacks one.
func download(version string, names ...string) [][]byte {
	module := "k8s.io/kubernetes@v" + version
	output, err := exec.Command("go", "mod", "download", "-json", module).Output()
	if err != nil {
		log.Fatalf("go mod download %s: %v: %s", module, err, output)
	}
	var downloaded struct{ Zip string }
	if err := json.Unmarshal(output, &downloaded); err != nil {
		log.Fatalf("%s: %v", module, err)
	}
	archive, err := zip.OpenReader(downloaded.Zip)
	if err != nil {
		log.Fatalf("%s: %v", module, err)
	}
	defer archive.Close()
	contents := make([][]byte, len(names))
	for index, name := range names {
		file, err := archive.Open(module + "/" + name)
		if err != nil {
			continue
		}
		if contents[index], err = io.ReadAll(file); err != nil {
			log.Fatalf("%s: %v", module, err)
		}
	}
	return contents
}

var (
	schema = regexp.MustCompile(`^func schema_(?:k8sio_api|pkg_api|k8s_io_api)\w*_core_v1_(\w+)\(`)
	key    = regexp.MustCompile(`^\t+"(\w+)": \{$`)
	enum   = regexp.MustCompile(`^\t+Enum:\s+\[\]interface\{\}\{(.*)\},$`)
	value  = regexp.MustCompile(`"([^"]*)"`)
)

// The values that fields of the core group may have, by `Definition.field`. The published document leaves them out, so
// that they are read from the code that it is made from.
func choicesIn(code string) map[string][]string {
	choices := map[string][]string{}
	var definition, last string
	for _, line := range strings.Split(code, "\n") {
		if strings.HasPrefix(line, "func ") {
			definition, last = "", ""
			if found := schema.FindStringSubmatch(line); found != nil {
				definition = found[1]
			}
		} else if found := key.FindStringSubmatch(line); found != nil {
			last = found[1]
		} else if found := enum.FindStringSubmatch(line); found != nil && definition != "" {
			for _, value := range value.FindAllStringSubmatch(found[1], -1) {
				choices[definition+"."+last] = append(choices[definition+"."+last], value[1])
			}
		}
	}
	return choices
}

// The type of a property in one word, and the definitions that it refers to.
func typeOf(property property) (string, []string) {
	if name := strings.TrimPrefix(property.Ref, "#/definitions/"); name != "" {
		if scalar := scalars[name]; scalar != "" {
			return scalar, nil
		}
		return name[strings.LastIndex(name, ".")+1:], []string{name}
	}
	switch {
	case property.Items != nil:
		of, refers := typeOf(*property.Items)
		return "[]" + of, refers
	case property.AdditionalProperties != nil:
		of, refers := typeOf(*property.AdditionalProperties)
		return "{}" + of, refers
	case property.Type == "integer":
		return property.Format, nil
	default:
		return property.Type, nil
	}
}

func print(all map[string]map[string]*field) {
	newest := len(versions) - 1
	fmt.Printf("# The fields of a PodTemplateSpec: name, type, first and last minor version, values. `!` is required.\n")
	fmt.Printf("# Written by tests/pod-schema from api/openapi-spec/swagger.json and pkg/generated/openapi of k8s.io/kubernetes\n")
	fmt.Printf("# v%s.\n", strings.Join(versions, ", v"))
	for _, name := range sorted(all) {
		fmt.Println(name)
		for _, key := range sorted(all[name]) {
			found := all[name][key]
			required, last, choices := "", "", ""
			if found.required {
				required = "!"
			}
			if found.last < newest {
				last = fmt.Sprintf("-%d", minorOf(found.last))
			}
			for _, value := range sorted(found.choices) {
				separator, since := "|", ""
				if choices == "" {
					separator = " "
				}
				if first := found.choices[value]; first > found.choicesSince {
					since = fmt.Sprintf("@%d", minorOf(first))
				}
				choices += separator + value + since
			}
			fmt.Printf(" %s%s %s %d%s%s\n", key, required, found.of, minorOf(found.first), last, choices)
		}
	}
}

func sorted[V any](of map[string]V) []string {
	var keys []string
	for key := range of {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}

func contains(list []string, wanted string) bool {
	for _, item := range list {
		if item == wanted {
			return true
		}
	}
	return false
}
