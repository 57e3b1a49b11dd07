// Writes how workloads look in Kubernetes' protobuf and in its JSON, for src/cluster/protobuf/schema.txt. The tags of the Go types
// say both, where the .proto files do not say which zero values JSON leaves out.
package main

import (
	"bufio"
	"fmt"
	"os"
	"reflect"
	"strings"

	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	oldbatch "k8s.io/api/batch/v1beta1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Types that JSON has another form of than their fields.
var special = map[string]string{
	name(reflect.TypeOf(resource.Quantity{})):  "quantity",
	name(reflect.TypeOf(intstr.IntOrString{})): "intorstring",
	name(reflect.TypeOf(meta.Time{})):          "time",
	"meta/v1.FieldsV1":                         "raw",
}

var seen = map[string]bool{}
var out = bufio.NewWriter(os.Stdout)

func main() {
	defer out.Flush()
	for _, root := range []interface{}{
		core.Pod{}, apps.Deployment{}, apps.DaemonSet{}, apps.ReplicaSet{}, batch.Job{}, oldbatch.CronJob{}, meta.Status{},
	} {
		describe(reflect.TypeOf(root))
	}
	for _, root := range others {
		describe(reflect.TypeOf(root))
	}
}

// k8s.io/api/core/v1.Pod is core/v1.Pod.
func name(t reflect.Type) string {
	if t.Name() == "Handler" {
		// Two types later, one of them for probes, of the same fields.
		return "core/v1.ProbeHandler"
	}
	path := strings.Split(t.PkgPath(), "/")
	if len(path) > 2 {
		path = path[len(path)-2:]
	}
	return strings.Join(path, "/") + "." + t.Name()
}

func describe(t reflect.Type) {
	own := name(t)
	if seen[own] || special[own] != "" {
		return
	}
	seen[own] = true
	for i := 0; i < t.NumField(); i++ {
		field := t.Field(i)
		tag := strings.Split(field.Tag.Get("protobuf"), ",")
		if len(tag) < 2 {
			// TypeMeta, which is beside the object.
			continue
		}
		key := strings.Split(field.Tag.Get("json"), ",")
		if key[0] == "managedFields" || key[0] == "status" && field.Type.Kind() == reflect.Struct {
			fmt.Fprintf(out, "%s %s %s left-out\n", own, tag[1], key[0])
			continue
		}
		options := strings.Join(key[1:], ",")
		form := form(field.Type)
		if strings.Contains(options, "inline") {
			fmt.Fprintf(out, "%s %s - %s\n", own, tag[1], form)
			continue
		}
		isAlways := field.Type.Kind() == reflect.Ptr || !strings.Contains(options, "omitempty")
		if isAlways && isScalar(field.Type) {
			form += "!"
		}
		fmt.Fprintf(out, "%s %s %s %s\n", own, tag[1], key[0], form)
	}
}

func isScalar(t reflect.Type) bool {
	if t.Kind() == reflect.Ptr {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Int32, reflect.Int64:
		return true
	}
	return false
}

func form(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Ptr:
		return form(t.Elem())
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "bool"
	case reflect.Int32, reflect.Int64:
		return "int"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "bytes"
		}
		return "[]" + form(t.Elem())
	case reflect.Map:
		return "{}" + form(t.Elem())
	case reflect.Struct:
		if form := special[name(t)]; form != "" {
			return form
		}
		defer describe(t)
		return name(t)
	}
	panic("no form for " + t.String())
}
