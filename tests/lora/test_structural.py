"""Structural LoRAs: known by names as they are published, and never by an ordinary word alone."""

import json

import pytest
import torch
from safetensors.torch import save_file

from lora_alloy.lora.file import lora_in_memory, open_lora
from lora_alloy.lora.structural import structural_type
from lora_alloy.lora.structural_words import told_by_name
from lora_alloy_testing.small_loras import SDXL, write_small

STRUCTURAL = """
    lcm-lora-sdv1-5 lcm-lora-sdxl LCM_LoRA_Weights_SD15 lcm_lora_sdxl SDXL_LCM_LoRA
    AnimateLCM_sd15_t2v_lora lcm-lora-ssd-1b LCMTurboMix_LCM_Sampler pytorch_lora_weights_lcm
    sdxl_lightning_4step_lora sdxl_lightning_8step_lora sdxl_lightning_2step_lora
    Qwen-Image-Lightning-8steps-V1.0 Qwen-Image-Edit-Lightning-4steps-V1.0-bf16
    Qwen-Image-Edit-2509-Lightning-4steps-V1.0-fp32 Wan2.2-Lightning_I2V-A14B-4steps-lora_HIGH_fp16
    Wan21_I2V_14B_lightx2v_cfg_step_distill_lora_rank64
    lightx2v_T2V_14B_cfg_step_distill_v2_lora_rank64_bf16 wan2.2_i2v_lightx2v_4steps_lora_v1_high_noise
    Wan21_T2V_14B_lightx2v_cfg_step_distill_lora_rank32 Wan21_CausVid_14B_T2V_lora_rank32
    Wan21_CausVid_bidirect2_T2V_1_3B_lora_rank32 Wan21_AccVid_T2V_14B_lora_rank32_fp16
    Wan2.1_T2V_14B_FusionX_LoRA FastWan_T2V_14B_480p_lora_rank_128_bf16 Wan2.1_I2V_14B_FusionX_LoRA
    hyvideo_FastVideo_LoRA-fp8 hunyuan_video_accvid_5_steps_lora_rank16_fp8_e4m3fn
    hunyuanvideo1.5_t2v_480p_lightx2v_4step_lora_rank_32_bf16
    Wan_2_1_T2V_14B_480p_rCM_lora_average_rank_83_bf16 sd_xl_turbo_lora_v1 sd_xl_turbo_lora_v1-64dim
    FLUX.1-Turbo-Alpha flux-turbo-alpha sdxl-turbo-lora Flux_Turbo_LoRA ltx-2-19b-distilled-lora-384
    ltxv-097-13b-distilled-lora128 Z-Image-Turbo-DistillPatch-LoRA zimage_turbo_training_adapter_v1
    Hyper-SDXL-8steps-lora Hyper-SD15-8steps-CFG-lora Hyper-FLUX.1-dev-8steps-lora
    Hyper-SD3-4steps-CFG-lora Hyper-SD15-1step-lora Hyper_SDXL_12steps_CFG_lora dmd2_sdxl_4step_lora
    dmd2_sdxl_4step_lora_fp16 DMD2_SDXL pcm_sdxl_normalcfg_8step_converted
    pcm_sd15_smallcfg_2step_converted TCD-SDXL-LoRA sd15_dpo_lora sdxl_dpo_lora SDXL_DPO_LoRA
    sd_xl_dpo_lora_v1 spo_sdxl_10ep_4k-data_lora_webui Wan2.1-Fun-14B-InP-MPS Wan2.1-Fun-14B-InP-HPS2.1
    flux1-canny-dev-lora flux1-depth-dev-lora ICEdit-normal-lora instruct-pix2pix-lora-sd15
    Wan22_A14B_T2V_LOW_Lightning_4steps_lora_250928_rank64_fp16
    wan2.2_t2v_A14b_low_noise_lora_rank64_lightx2v_4step_1217 Wan2.2-I2V-A14B-4steps-lora-rank64-Seko-V1
    flash-sdxl-4steps flux_schnell_4step_lora
""".split()
OTHERS = """
    hyperrealism HyperRealism_xl hyper_realism_flux hyper_detailed_sdxl hyperdetail
    hyperrealistic_portrait turbo_charged_car turbo_car_sdxl turbo-granny TurboTransformer_style
    lightning_bolt_style_v1 lightning_xl lightning_sdxl_v1 LightningEffects ZeusLightning_xl
    black_lightning_flux lightning lightning_mcqueen_sdxl pink_lightning Turbo turbo_v1 hyper Hyperion
    hyperborea_style hyper_pop_sd15 zimage_turbo_mychar z-image-turbo-pixelart ZImageTurbo_v1
    z_image_turbo_lora_v2 Z-Image-Turbo-Realism-LoRA flux_schnell_style schnell_portrait
    qwen_image_edit_lora_v1 qwen-edit-2509-multiple-angles Qwen-Image-Edit-2509-Relight
    flux_kontext_edit_lora_v2 flash_photography_sdxl flash_xl theflash_sdxl depth_of_field_flux
    depth_slider_xl canny_valley edit_my_face mychar_lcm pixel_art_lcm dpo_girl my_style_lightning_4steps
    bolt_lightning_8steps fast_food_sdxl ltx_distilled_mychar control_freak flux_remote_control
    editorial_fashion_sdxl detail_tweaker_xl add-detail-xl epiNoiseoffset_v2 ink-wash watercolor
    copper-robot style_step_2000 mychar-000010 sdxl_lora_v1 flux_lora_rank64 wan2.1_t2v_14b_lora
    pytorch_lora_weights adapter_model Wan21_PusaV1_LoRA_14B_rank512_bf16 DetailEnhancerV1
    instagirl_v2.5_lightx2v dungeons_and_dragons_xl more_details JuggernautXL_lightning
    dreamshaper_xl_turbo_style pcm_audio_art tcd_portrait spo_face mps_tokyo distillery_interior
    whiskey_distillation_flux turbocharger_v2_sdxl wan_turbo_engine accelerator_pedal
""".split()


@pytest.mark.parametrize("name", STRUCTURAL)
def test_a_published_name_is_known(name):
    told = told_by_name(f"{name}.safetensors")
    assert told is not None and told.confidence != "low"


@pytest.mark.parametrize("name", OTHERS)
def test_an_ordinary_word_is_not_enough(name):
    told = told_by_name(f"{name}.safetensors")
    assert told is None or told.confidence == "low"


@pytest.mark.parametrize(
    ("name", "kind", "confidence"),
    [
        ("lcm-lora-sdxl", "lcm", "high"),
        ("sdxl_lightning_4step_lora", "lightning", "high"),
        ("sd_xl_turbo_lora_v1", "turbo", "medium"),
        ("Hyper-FLUX.1-dev-8steps-lora", "hyper", "high"),
        ("Wan21_CausVid_14B_T2V_lora_rank32", "distilled", "high"),
        ("sdxl_dpo_lora", "dpo", "high"),
        ("flux1-canny-dev-lora", "edit", "medium"),
        ("my_style_lightning_4steps", "lightning", "low"),
    ],
)
def test_each_kind_has_its_confidence(name, kind, confidence):
    told = told_by_name(name)
    assert told is not None and (told.kind, told.confidence) == (kind, confidence)


def of(name, metadata=None, modules=SDXL):
    tensors = {}
    for module, (rows, columns) in modules.items():
        tensors[f"{module}.lora_up.weight"] = torch.ones(rows, 2)
        tensors[f"{module}.lora_down.weight"] = torch.ones(2, columns)
    return lora_in_memory(name, tensors, metadata or {})


def test_the_evidence_quotes_the_word_and_where_it_stands():
    found = structural_type(of("sub/folder\\sdxl_lightning_4step_lora.safetensors"))
    assert found is not None and found.title == "Lightning" and found.is_held
    assert found.evidence == ("`lightning` in its name stands with 4 steps and nothing but technical words",)


def test_a_renamed_file_is_known_by_the_title_in_its_header():
    found = structural_type(of("speed.safetensors", {"ss_output_name": "Hyper-SDXL-8steps-lora"}))
    assert found is not None and found.kind == "hyper" and "`ss_output_name`" in found.evidence[0]


def test_a_file_without_a_name_of_its_own_is_known_by_its_folder(tmp_path):
    folder = tmp_path / "lcm-lora-sdxl"
    folder.mkdir()
    found = structural_type(open_lora(write_small(folder / "pytorch_lora_weights.safetensors")))
    assert found is not None and found.kind == "lcm" and "folder" in found.evidence[0]
    assert structural_type(open_lora(write_small(folder / "red-hat.safetensors"))) is None


def test_captions_of_training_pictures_speak_against_it():
    captions = {"ss_tag_frequency": json.dumps({"10_car": {"turbo": 40}})}
    assert structural_type(of("sdxl_turbo_lora")).is_held
    found = structural_type(of("sdxl_turbo_lora", captions))
    assert not found.is_held and any("captions" in one for one in found.evidence)


@pytest.mark.parametrize(
    "told", [{"modelspec.trigger_phrase": "zeus"}, {"modelspec.title": "Bolts of Zeus"}], ids=str
)
def test_a_trigger_or_another_title_speaks_against_an_ordinary_word(told):
    assert structural_type(of("sdxl_lightning")).is_held
    assert not structural_type(of("sdxl_lightning", told)).is_held
    assert structural_type(of("sdxl_lightning_4step_lora", told)).is_held


def test_prose_raises_what_a_name_says_and_says_nothing_alone():
    told = {"modelspec.description": "Adversarial diffusion distillation of the base model."}
    assert not structural_type(of("turbo_v1")).is_held
    assert structural_type(of("turbo_v1", told)).is_held
    assert structural_type(of("red-hat", told)) is None


def test_a_wider_first_layer_is_another_input(tmp_path):
    name = "lora_unet_input_blocks_0_0"
    tensors = {}
    for module, (rows, columns) in SDXL.items():
        tensors[f"{module}.lora_up.weight"] = torch.ones(rows, 2)
        tensors[f"{module}.lora_down.weight"] = torch.ones(2, columns)
    for inputs, kind in ((4, None), (8, "edit")):
        tensors[f"{name}.lora_up.weight"] = torch.ones(320, 2, 1, 1)
        tensors[f"{name}.lora_down.weight"] = torch.ones(2, inputs, 3, 3)
        path = tmp_path / f"{inputs}.safetensors"
        save_file(tensors, path)
        found = structural_type(open_lora(path))
        assert (found and found.kind) == kind
    assert found.confidence == "high" and "from 4 inputs to 8" in found.evidence[0]


def test_hostile_headers_are_looked_at_briefly():
    told = {key: "lightning " * 200_000 for key in ("name", "modelspec.title", "modelspec.description")}
    found = structural_type(of("x" * 100_000, {**told, "ss_tag_frequency": "[" * 100_000}))
    assert found is None or len(str(found)) < 2000
