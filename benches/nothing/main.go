// A webhook that does nothing, as one is written with Go's standard library: whatever it is asked, it answers with one constant patch.
//
// Its standard input brings {"certificate": PEM, "key": PEM, "patch": [..]}. It prints where it listens, and ends when its input does.
package main

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
)

type settings struct {
	Certificate string          `json:"certificate"`
	Key         string          `json:"key"`
	Patch       json.RawMessage `json:"patch"`
}

type review struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Request    *request  `json:"request,omitempty"`
	Response   *response `json:"response,omitempty"`
}

type request struct {
	UID string `json:"uid"`
}

type response struct {
	UID       string `json:"uid"`
	Allowed   bool   `json:"allowed"`
	PatchType string `json:"patchType"`
	Patch     []byte `json:"patch"`
}

func main() {
	log.SetPrefix("nothing: ")
	log.SetFlags(0)
	var given settings
	input := json.NewDecoder(os.Stdin)
	if err := input.Decode(&given); err != nil {
		log.Fatal(err)
	}
	pair, err := tls.X509KeyPair([]byte(given.Certificate), []byte(given.Key))
	if err != nil {
		log.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(listener.Addr())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	log.Fatal(http.Serve(listener, http.HandlerFunc(func(writer http.ResponseWriter, asked *http.Request) {
		var about review
		if err := json.NewDecoder(asked.Body).Decode(&about); err != nil || about.Request == nil {
			http.Error(writer, "no AdmissionReview", http.StatusBadRequest)
			return
		}
		answer := response{UID: about.Request.UID, Allowed: true, PatchType: "JSONPatch", Patch: given.Patch}
		writer.Header().Set("Content-Type", "application/json")
		json.NewEncoder(writer).Encode(review{APIVersion: about.APIVersion, Kind: about.Kind, Response: &answer})
	})))
}
